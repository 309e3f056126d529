"""Data: brains made from a seed, and the names of their labels."""
