"""Data: where scans lie and who is in which split, how they are loaded and paired, and brains made from a seed."""
