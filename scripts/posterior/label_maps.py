"""Label maps as compact codes: the one place where label values from files are checked and numbered.

Every other function here works on codes: 0 for "none of the listed structures", 1 … S for the S structures in the order
of ``labels``. Codes fit in a byte for up to 255 structures, which makes comparisons ten times faster than on int64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_LABEL = 2**24 - 1
"""Largest label id, as in loading: the colors of FreeSurfer's annotations as numbers take three bytes.

The table from ids to codes has one entry an id, so that it takes at most 16 MB, or 64 MB for more than 255 structures.
"""


def check_labels(labels: Sequence[int]) -> tuple[int, ...]:
    """The ids of the structures to evaluate; ValueError for none, repeated ones, no whole numbers, or out of range."""
    ids = tuple(int(label) for label in labels)
    if not ids:
        raise ValueError("expected at least one label id, got an empty list")
    if any(value != label for value, label in zip(ids, labels, strict=True)):
        raise ValueError(f"expected whole numbers as label ids, got {list(labels)}")
    repeated = sorted({label for label in ids if ids.count(label) > 1})
    if repeated:
        raise ValueError(f"expected distinct label ids, got {repeated} more than once")
    outside = [label for label in ids if not 0 <= label <= MAX_LABEL]
    if outside:
        raise ValueError(f"expected label ids in 0 … {MAX_LABEL}, got {outside}")
    return ids


def as_integers(label_map: Tensor) -> Tensor:
    """Return a label map in an integer dtype; whole numbers stored as floating point are cast exactly.

    Raises:
        ValueError: when a value is not a whole number (as after linear interpolation), not finite, or beyond 32 bits.
    """
    values = label_map.as_subclass(Tensor)  # a MetaTensor would carry its affine through every operation
    if values.is_complex():
        raise ValueError(f"expected integer label values, got {values.dtype}")
    if values.dtype == torch.bool:
        return values.to(torch.uint8)
    if not values.is_floating_point():
        return values
    whole = values.to(torch.int32)
    wrong = whole != values
    if bool(wrong.any()):
        raise ValueError(
            f"expected whole numbers in the label map, got {int(wrong.sum())} voxels that are not, "
            f"the first is {values[wrong][0].item()}; resample label maps with nearest-neighbor interpolation"
        )
    return whole


def encode_labels(label_map: Tensor, labels: Sequence[int]) -> Tensor:
    """Number the S structures of a label map of any shape compactly.

    Returns:
        Codes of the same shape, uint8 for S ≤ 255, else int32: i + 1 for ``labels[i]``, 0 for all else.

    Raises:
        ValueError: see :func:`check_labels` and :func:`as_integers`.
    """
    ids = check_labels(labels)
    values = as_integers(label_map)
    # Slot v + 1 of the table holds the code of value v; the first and the last slot catch everything outside.
    dtype, device = torch.uint8 if len(ids) <= 255 else torch.int32, values.device
    table = torch.zeros(max(ids) + 3, dtype=dtype, device=device)
    table[torch.tensor(ids, device=device) + 1] = torch.arange(1, len(ids) + 1, dtype=dtype, device=device)
    # Clamp before the cast to 32 bits, which would wrap large 64-bit values around.
    slots = values if values.dtype.itemsize < 4 else values.clamp(-1, max(ids) + 1)
    slots = slots.to(torch.int32).add_(1).clamp_(0, max(ids) + 2)
    return table.index_select(0, slots.flatten()).view(values.shape)
