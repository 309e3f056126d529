"""Structured SIR: registration of 3-D medical images with an honest account of its uncertainty.

The folders, each of which knows only those before it:
core -> gaussian -> registration -> networks -> inference -> evidence -> posterior -> files -> alignment and synthetic
-> data -> engines and evaluation -> report -> commands.
"""

from scripts.core.cache import give_numba_a_cache

give_numba_a_cache()
