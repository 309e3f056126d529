"""Handlers: each watches an engine and does one thing."""

from scripts.engines.handlers.checkpoints import BestModel, Checkpoints
from scripts.engines.handlers.figures import FigureLog
from scripts.engines.handlers.pictures import Pictures
from scripts.engines.handlers.progress import Progress

__all__ = ["BestModel", "Checkpoints", "FigureLog", "Pictures", "Progress"]
