"""Ignite workflows: what one iteration does, and the handlers that watch, save and stop it."""
