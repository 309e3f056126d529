"""Handlers: each watches an engine and does one thing."""

from scripts.engines.handlers.checkpoints import BestModel, Checkpoints
from scripts.engines.handlers.training_bar import Progress
from scripts.engines.handlers.training_log import FigureLog
from scripts.engines.handlers.validation_picture import Pictures

__all__ = ["BestModel", "Checkpoints", "FigureLog", "Pictures", "Progress"]
