"""Values that people set, checked by pydantic; what is wrong is said in one line, everywhere in the same words."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from scripts.core.errors import DataError

_NOUNS = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}

T = TypeVar("T")


def _several(value: Any) -> Any:
    parts = value.replace(",", " ").split() if isinstance(value, str) else value
    return parts if isinstance(parts, Collection) else [parts]


Truth = Annotated[bool, BeforeValidator(lambda value: value.strip() if isinstance(value, str) else value)]
"""True and false as people write them, too: on a command line, `false` arrives as a word."""
Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Length = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a positive number of mm")]
Labels = Annotated[list[int], BeforeValidator(_several), Field(description="label values such as 14, 30")]


def check(name: str, value: Any, kind: Any) -> Any:
    """The value of an option as a type such as :data:`Truth`; else a DataError with what the type accepts."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise _refusal(error, {name: kind}, name) from None


@dataclass_transform(field_specifiers=(dataclasses.field,))
def checked(cls: type[T]) -> type[T]:
    """A dataclass of pydantic's whose errors are those of :func:`check`."""
    made: Any = dataclass(cls, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))
    make = made.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        try:
            make(self, *args, **options)
        except ValidationError as error:
            kinds, place = get_type_hints(made, include_extras=True), error.errors()[0]["loc"][0]
            raise _refusal(error, kinds, list(kinds)[place] if isinstance(place, int) else place) from None

    made.__init__ = init
    return made


def unknown(name: str, options: Collection[str]) -> DataError:
    """The error for an option that there is not, with the nearest one that there is."""
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
    hint = f"did you mean --{near[0]}?" if near else f"the options are {', '.join(options)}"
    return DataError(f"unknown option --{name}; {hint}")


def _refusal(error: ValidationError, kinds: Mapping[str, Any], name: str) -> Exception:
    """The first of pydantic's errors in our words."""
    first = error.errors()[0]
    if first["type"] == "unexpected_keyword_argument":
        return unknown(name, kinds)
    if first["type"] == "missing":
        return DataError(f"--{name} is missing")
    if first["type"] == "value_error":  # one of ours already
        return first["ctx"]["error"]
    wanted = _wanted(TypeAdapter(kinds[name]).json_schema(), "than_equal" in first["type"])
    return DataError(f"--{name} must be {wanted}, got {first['input']!r}")


def _wanted(schema: Mapping[str, Any], beyond: bool) -> str:
    """What a type accepts; of a range with two ends these alone if the value is beyond them, else the kind alone."""
    if "description" in schema:
        return str(schema["description"])
    if "anyOf" in schema:
        return " or ".join(_wanted(part, beyond) for part in schema["anyOf"] if part != {"type": "null"})
    if "enum" in schema:
        return " or ".join(schema["enum"]) if len(schema["enum"]) < 3 else f"one of {', '.join(schema['enum'])}"
    noun, low, high = _NOUNS.get(schema["type"], schema["type"]), schema.get("minimum"), schema.get("maximum")
    if high is not None:
        return f"in {low}..{high}" if beyond else noun
    return noun if low is None else f"{noun} of at least {low}"
