"""Options of a request: their defaults, as a viewer's panel shows them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from bundle.monailabel.errors import bad_request
from scripts.alignment.align import Method

LARGEST_SEED = 2**62

# What MONAI Label and its clients put into requests beside the options of a task.
FOREIGN = frozenset(
    [
        "model",
        "image",
        "file",
        "label",
        "session",
        "session_id",
        "client_id",
        "user",
        "device",
        "description",
        "logging",
        "timeout",
        "save_label",
        "label_tag",
        "label_info",
        "model_filename",
        "result_extension",
        "result_dtype",
        "result_compress",
        "result_write_to_file",
        "skip_writer",
        "images",
        "labels",
        "max_workers",
        "max_batch_size",
        "multi_gpu",
        "gpus",
        "_id",
        "_image_id",
    ]
)


def shared_options() -> dict[str, Any]:
    """Options of every task with their defaults; of a list, the first value is the default."""
    return {
        "moving": "",
        "moving_tag": "final",
        "num_proposals": 1200,
        "num_samples": 80,
        "seed": 0,
        "align": ["auto", *(method for method in get_args(Method) if method != "auto")],
        "refine_steps": 0,
    }


def _number(low: int, high: int) -> Callable[[str, Any], int]:
    def parse(name: str, value: Any) -> int:
        try:
            number = int(str(value))
        except ValueError:
            raise bad_request(f"{name} must be a whole number, got {value!r}") from None
        if isinstance(value, bool) or not low <= number <= high:
            raise bad_request(f"{name} must be in {low}..{high}, got {value!r}")
        return number

    return parse


_PARSERS: dict[str, Callable[[str, Any], int]] = {
    "num_proposals": _number(2, 100_000),
    "num_samples": _number(1, 100_000),
    "seed": _number(0, LARGEST_SEED),
    "refine_steps": _number(0, 10_000),
    "mode": _number(1, 100),
}


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
    if given is None:
        return choices[0] if choices else default
    if isinstance(given, list):  # a viewer's list of choices, the chosen one first
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
    return given.strip() or default
