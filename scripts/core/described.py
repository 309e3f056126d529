"""Parts of a model that say what they are, as plain data, and can be made again from it.

A file of weights or of a posterior has to know what its numbers mean: which likelihood, which prior, how the network's
output is read. So each such part has a `kind`, its name in files, and keeps the arguments of its constructor under
their own names. Nothing in a file is run: a kind is looked up among the classes that were defined here.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from scripts.core.errors import DataError

KINDS: dict[str, type[Described]] = {}
"""Classes by the name that they have in files."""
HOMES = ("scripts.registration", "scripts.networks", "scripts.inference", "scripts.posterior")
"""Packages that are searched for a kind that is not known yet: a new part is one new file in one of them."""

T = TypeVar("T", bound="Described")


class Described:
    """Base of the parts.

    Class attributes:
        kind: the name in files, never to be changed; a class without one cannot be stored.
        aside: arguments of the constructor that do not change any result, such as the precision to compute in.
    """

    kind: ClassVar[str] = ""
    aside: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if kind := cls.__dict__.get("kind"):
            KINDS[kind] = cls

    def settings(self) -> dict[str, Any]:
        """The kind and the constructor's arguments, as plain data. Raises DataError for a class without a kind."""
        if KINDS.get(self.kind) is not type(self):
            raise DataError(f"{type(self).__name__} cannot be stored: give it a `kind` of its own")
        names = [name for name in inspect.signature(type(self)).parameters if name not in self.aside]
        return {"kind": self.kind, **{name: _plain(name, getattr(self, name)) for name in names}}


def make(settings: Mapping[str, Any], expected: type[T], **aside: Any) -> T:
    """The part that these settings describe; `aside` are further arguments of its constructor.

    Raises:
        DataError: for a kind or arguments that are not known here, or a part of another sort.
    """
    kind = str(settings.get("kind"))
    if kind not in KINDS:
        _look_for_more()
    found = KINDS.get(kind)
    if found is None or not issubclass(found, expected):
        known = ", ".join(sorted(name for name, part in KINDS.items() if issubclass(part, expected)))
        raise DataError(f"expected one of {known}, got {kind!r}: was the file made by a later version?")
    arguments = {name: _made(value) for name, value in settings.items() if name != "kind"}
    try:
        return found(**arguments, **aside)
    except TypeError as error:
        raise DataError(f"{kind}: {error}: was the file made by a later version?") from error


def differences(one: Any, other: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """Where two descriptions differ: (name of the value, in the one, in the other)."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.get("kind") != other.get("kind"):
            return [(name, one.get("kind"), other.get("kind"))]
        keys = dict.fromkeys((*one, *other))
        parts = [differences(one.get(key), other.get(key), f"{name}.{key}".lstrip(".")) for key in keys]
        return [difference for part in parts for difference in part]
    return [] if one == other else [(name, one, other)]


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Described):
        return value.settings()
    if isinstance(value, list | tuple):
        return [_plain(name, part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(name, part) for key, part in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise DataError(f"{name} cannot be stored: expected plain values, got {type(value).__name__}")


def _made(value: Any) -> Any:
    if isinstance(value, list):
        return [_made(part) for part in value]
    return make(value, Described) if isinstance(value, Mapping) and "kind" in value else value


def _look_for_more() -> None:
    """Import all modules of the packages that may define parts."""
    for home in HOMES:
        for module in pkgutil.iter_modules(importlib.import_module(home).__path__, f"{home}."):
            importlib.import_module(module.name)
