"""Speed and memory, measured in one run: `python -m bundle.benchmark solve` and the like."""
