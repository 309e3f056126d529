"""Tooling about the bundle: packing, checks, synthetic cohorts, the MONAI Label app. Never imported by a config."""
