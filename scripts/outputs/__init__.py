"""What comes out of a registration: handlers that each write some of its files, and what viewers are given."""

from scripts.outputs.filing import Filing, ResultHandler
from scripts.outputs.result_files import LabelMaps, Modes, PosteriorFile, Report, UncertaintyMaps, WarpedImage
from scripts.outputs.transform_files import Transforms

__all__ = [
    "Filing",
    "LabelMaps",
    "Modes",
    "PosteriorFile",
    "Report",
    "ResultHandler",
    "Transforms",
    "UncertaintyMaps",
    "WarpedImage",
    "all_handlers",
]


def all_handlers(report: bool = True) -> list[ResultHandler]:
    """The handlers of `configs/inference.json`."""
    maps = [WarpedImage(), UncertaintyMaps(), LabelMaps(), Transforms(), Modes(), PosteriorFile()]
    return [*maps, Report(report)]
