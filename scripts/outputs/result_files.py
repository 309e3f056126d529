"""Handlers of the files of a result; each can be left out of `configs/inference.json`, or another one added."""

from __future__ import annotations

import numpy as np

from scripts.core.truth import truth
from scripts.files.file_order import copy_rounded, copy_volume
from scripts.files.itk import write_transform
from scripts.files.nifti import write_volume
from scripts.outputs.filing import Filing, FilingEvents, ResultHandler
from scripts.outputs.folder import COLORS, write_json
from scripts.posterior.label_volumes import write_volumes
from scripts.posterior.posterior_file import save
from scripts.report.colors import write_color_table
from scripts.report.page import write_report


class WarpedImage(ResultHandler):
    """`warped.nii.gz`: the moving image, warped by the posterior's mean."""

    def __call__(self, filing: Filing) -> None:
        """Write."""
        filing.volume("warped.nii.gz", filing.result.warped)


class UncertaintyMaps(ResultHandler):
    """`uncertainty_std.nii.gz` (mm: all together, R, A, S) and `jacobian.nii.gz` (log-Jacobian, share of folds)."""

    def __call__(self, filing: Filing) -> None:
        """Write."""
        result = filing.result
        # More digits are noise, and took twice the time and space to compress.
        std = np.empty((*result.grid.shape, 4), np.float32, order="F")
        for channel, values in enumerate((result.std, *result.std_axes)):
            copy_rounded(values, std[..., channel])
        jacobian = np.empty((*result.grid.shape, 2), np.float32, order="F")
        copy_rounded(result.log_jacobian, jacobian[..., 0])
        copy_volume(result.fold_probability, jacobian[..., 1])
        filing.volume("uncertainty_std.nii.gz", std, "std mm: all together, R, A, S")
        filing.volume("jacobian.nii.gz", jacobian, "log-Jacobian without alignment, folds")


class LabelMaps(ResultHandler):
    """Most probable labels, their probability and entropy, `volumes.csv` and colors; nothing without moving labels."""

    def __call__(self, filing: Filing) -> None:
        """Write."""
        labels = filing.result.labels
        if labels is None:
            return
        filing.volume("labels.nii.gz", labels.label)
        filing.volume("label_probability.nii.gz", labels.probability)
        filing.volume("label_entropy.nii.gz", labels.entropy, "nats")
        write_volumes(labels.volumes, filing.folder / "volumes.csv")
        write_color_table(labels.volumes, filing.folder / COLORS)


class Modes(ResultHandler):
    """`modes/`: for each group among the samples an image, a transform and its share."""

    def __call__(self, filing: Filing) -> None:
        """Write."""
        result, folder = filing.result, filing.folder / "modes"
        if not result.modes:
            return
        shares = []
        for number, mode in enumerate(result.modes, start=1):
            image, transform = folder / f"mode{number}_warped.nii.gz", folder / f"mode{number}_transform.h5"
            filing.write(write_volume, image, mode.warped, result.grid, header=filing.header)
            filing.write(write_transform, transform, mode.displacement, result.grid, result.alignment)
            shares.append({"mode": number, "weight": mode.weight, "proposal": mode.sample})
        distinct = {key: result.diagnostics.get(f"modes_{key}") for key in ("distinct", "p_value")}
        write_json({"modes": shares, **distinct}, folder / "modes.json")


class PosteriorFile(ResultHandler):
    """`posterior.pt`: every weighted sample can be drawn again from it."""

    def __call__(self, filing: Filing) -> None:
        """Write."""
        filing.write(save, filing.posterior, filing.folder / "posterior.pt")


class Report(ResultHandler):
    """`report.html`, unless it is not enabled."""

    event = FilingEvents.REPORTING

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = truth("report", enabled)

    def __call__(self, filing: Filing) -> None:
        """Write."""
        if self.enabled:
            with filing.clock("report"):
                write_report(filing.result, filing.folder / "report.html", filing.findings)
