"""How the figures in docs/results.md and docs/performance.md were made: comparisons, baselines, tables, benchmarks."""
