"""Where to compute."""

from __future__ import annotations

import torch

from scripts.core.errors import DataError, first_line


def usable_device(device: torch.device | str) -> torch.device:
    """The device, if something can be computed on it. Raises DataError with the reason."""
    try:
        found = torch.device(device)
        if float(torch.ones(1, device=found).cpu()) == 1.0:
            return found
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        reason = first_line(error).strip().rstrip(".")
    raise DataError(f"--device {device}: cannot be used ({reason}); try --device cpu")
