"""Importance sampling: weights, temperature, resampling, diagnostics, and the objectives built on them."""
