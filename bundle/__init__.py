"""Tooling about the bundle: packing, checks, the MONAI Label app. Never imported by a config."""
