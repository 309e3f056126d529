"""Tooling about the bundle: benchmarks, demo, packing. Never imported by a config."""
