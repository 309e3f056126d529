"""The published tables and figures, made from the CSV files in docs/results and from nothing else."""
