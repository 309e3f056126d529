"""Options of a request: their defaults, as a viewer's panel shows them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from annotated_types import Interval, Len
from pydantic import BaseModel, BeforeValidator, FiniteFloat, StringConstraints, ValidationError

from bundle.monailabel.errors import bad_request
from scripts.alignment.align import Method
from scripts.core.checked import Labels, Length, check, unknown
from scripts.core.errors import DataError

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


def read_overrides(text: str) -> dict[str, Any]:
    """Settings of `configs/inference.json` for all requests, as the server's command line gives them.

    Raises:
        DataError: for text that is no JSON object, and for a setting that there is not.
    """
    try:
        overrides = json.loads(text)
    except ValueError:
        overrides = None
    if not isinstance(overrides, dict):
        raise DataError(f"--conf overrides must be a JSON object of settings, got {text}")
    config = json.loads(INFERENCE.read_text(encoding="utf-8"))
    for name in overrides:
        if name.split("::")[0] not in config:
            raise DataError(f"--conf overrides: {unknown(name, config)}")
    return overrides


class _Point(BaseModel, coerce_numbers_to_str=True):
    fixed: Annotated[list[FiniteFloat], Len(3, 3)]
    moving: Annotated[list[FiniteFloat], Len(3, 3)]
    name: str = ""


def _points(value: Any) -> list[dict[str, Any]]:
    points = []
    for number, point in enumerate(value if isinstance(value, list) else [value], start=1):
        try:
            points.append({"name": str(number), **_Point.model_validate(point).model_dump(exclude_unset=True)})
        except ValidationError:
            text = f"landmarks: point {number} must have fixed and moving, three numbers (mm) each; got {point!r}"
            raise DataError(text) from None
    return points


# A request's numbers may be text; true, which is 1 in Python, is no number.
_NO_TRUTH = BeforeValidator(lambda value: str(value) if isinstance(value, bool) else value)
_TEXT = Annotated[str, StringConstraints(strip_whitespace=True)]
_KINDS = {
    "num_proposals": Annotated[int, Interval(ge=2, le=100_000), _NO_TRUTH],
    "num_samples": Annotated[int, Interval(ge=1, le=100_000), _NO_TRUTH],
    "seed": Annotated[int, Interval(ge=0, le=LARGEST_SEED), _NO_TRUTH],
    "refine_steps": Annotated[int, Interval(ge=0, le=10_000), _NO_TRUTH],
    "detail_steps": Annotated[int, Interval(ge=0, le=10_000), _NO_TRUTH],
    "mode": Annotated[int, Interval(ge=1, le=100), _NO_TRUTH],
    "landmark_std": Length,
    "outline_std": Length,
    "corrected_structures": Labels,
    "landmarks": Annotated[list[Any], BeforeValidator(_points)],
}
_LISTS = ("landmarks", "corrected_structures")


def parse_options(request: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a request, complete and checked; an HTTPException of 400 for a wrong one."""
    foreign = sorted(str(key) for key in request if key not in defaults and key not in FOREIGN)
    if foreign:
        raise bad_request(f"unknown option {', '.join(foreign)}; there are {', '.join(defaults)}")
    return {name: _value(name, request.get(name), default) for name, default in defaults.items()}


def _value(name: str, given: Any, default: Any) -> Any:
    choices = default if isinstance(default, list) else None
    if given is None or given == "":
        return choices[0] if choices else default
    if isinstance(given, list) and given and name not in _LISTS:  # a viewer's list of choices, the chosen one first
        given = given[0]
    kind = Literal[tuple(choices)] if choices else _KINDS.get(name, _TEXT)
    try:
        return check(name, given, kind)
    except DataError as error:
        raise bad_request(str(error).removeprefix("--")) from None
