"""Options of a request: their defaults, as a viewer's panel shows them, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from bundle.monailabel.errors import bad_request
from scripts.alignment.align import Method

LARGEST_SEED = 2**62
INFERENCE = Path(__file__).resolve().parents[2] / "configs/inference.json"

# What MONAI Label and its clients put into requests beside the options of a task.
_OF_REQUESTS = ("model", "image", "session", "client_id", "user", "device", "description", "logging", "timeout")
_OF_RESULTS = ("save_label", "label_tag", "label_info", "result_extension", "result_dtype", "result_compress")
_OF_BATCHES = ("images", "labels", "max_workers", "max_batch_size", "multi_gpu", "gpus", "_id", "_image_id")
FOREIGN = frozenset((*_OF_REQUESTS, *_OF_RESULTS, *_OF_BATCHES))


def shared_options() -> dict[str, Any]:
    """Options of every task with the defaults of `run inference`; of a list, the first value is the default."""
    config = json.loads(INFERENCE.read_text(encoding="utf-8"))
    drawn = {name: config["displayable_configs"][name] for name in ("num_proposals", "num_samples", "seed")}
    return {
        "moving": "",
        "moving_tag": "final",
        **drawn,
        "align": [config["align"], *(method for method in get_args(Method) if method != config["align"])],
        **{name: config[name] for name in ("refine_steps", "detail_steps")},
    }


def _number(low: int, high: int) -> Callable[[str, Any], int]:
    def parse(name: str, value: Any) -> int:
        try:
            number = int(str(value))
        except ValueError:
            raise bad_request(f"{name} must be a whole number, got {value!r}") from None
        if not low <= number <= high:
            raise bad_request(f"{name} must be in {low}..{high}, got {value!r}")
        return number

    return parse


def _length(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise bad_request(f"{name} must be a positive number of mm, got {value!r}")
    return number


def _labels(name: str, value: Any) -> list[int]:
    """Labels as a list, or as text with blanks or commas between."""
    parts = value.replace(",", " ").split() if isinstance(value, str) else value
    try:
        return [int(part) for part in parts]
    except (TypeError, ValueError):
        raise bad_request(f"{name} must be label values such as 14, 30, got {value!r}") from None


def _landmarks(name: str, value: Any) -> list[dict[str, Any]]:
    """Corresponding points: objects with `fixed` and `moving`, three numbers each, and optionally `name`."""
    points = []
    for number, point in enumerate(value if isinstance(value, list) else [], start=1):
        try:
            places = {role: [float(part) for part in point[role]] for role in ("fixed", "moving")}
        except (TypeError, ValueError, KeyError):
            places = {}
        if any(len(place) != 3 or not all(map(math.isfinite, place)) for place in places.values()) or not places:
            raise bad_request(
                f"{name}: point {number} must have fixed and moving, three numbers (mm) each; got {point!r}"
            )
        points.append({"name": str(point.get("name", number)), **places})
    if not points:
        raise bad_request(f"{name} must be a list of points with fixed and moving, got {value!r}")
    return points


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "num_proposals": _number(2, 100_000),
    "num_samples": _number(1, 100_000),
    "seed": _number(0, LARGEST_SEED),
    "refine_steps": _number(0, 10_000),
    "detail_steps": _number(0, 10_000),
    "mode": _number(1, 100),
    "landmark_std": _length,
    "outline_std": _length,
    "corrected_structures": _labels,
    "landmarks": _landmarks,
}
_LISTS = ("landmarks", "corrected_structures")


def parse_options(request: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a request, complete and checked.

    Args:
        request: as it came, with keys of MONAI Label's own among the options.
        defaults: see :func:`shared_options`.

    Raises:
        HTTPException: 400 for an unknown option or a wrong value.
    """
    unknown = sorted(str(key) for key in request if key not in defaults and key not in FOREIGN)
    if unknown:
        raise bad_request(f"unknown option {', '.join(unknown)}; there are {', '.join(defaults)}")
    return {name: _value(name, request.get(name), default) for name, default in defaults.items()}


def _value(name: str, given: Any, default: Any) -> Any:
    choices = default if isinstance(default, list) else None
    if given is None or given == "":
        return choices[0] if choices else default
    if isinstance(given, list) and name not in _LISTS:  # a viewer's list of choices, the chosen one first
        if not given:
            raise bad_request(f"{name} is an empty list")
        given = given[0]
    if choices is not None:
        if given not in choices:
            raise bad_request(f"{name} must be one of {', '.join(choices)}, got {given!r}")
        return given
    if name in _PARSERS:
        return _PARSERS[name](name, given)
    if not isinstance(given, str):
        raise bad_request(f"{name} must be text, got {given!r}")
    return given.strip()
