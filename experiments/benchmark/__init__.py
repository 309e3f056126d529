"""Speed and memory, measured in one run: `python -m experiments.benchmark solve` and the like."""
