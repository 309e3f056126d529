"""Synthetic brains with known labels, for examples, tests and trainings without scans."""
