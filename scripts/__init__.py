"""Structured SIR: registration of 3-D medical images with an honest account of its uncertainty.

The folders stand in the order in which data flows:
gaussian -> networks -> registration -> inference -> evaluation -> engines, with data and io at the two ends.
"""

from scripts.cache import give_numba_a_cache

give_numba_a_cache()
