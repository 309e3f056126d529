"""What a person sets on the command line, checked before anything is computed.

MONAI takes every option that it is given: one that nothing uses is ignored, and a wrong value ends in its traceback,
because the objects of a config are built outside of our code. So the list of expressions that a command runs begins
with :func:`check_options`. It knows no option by name: names and types are those of the shipped config, limits those
that the constructors state.
"""

from __future__ import annotations

import difflib
import inspect
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser
from monai.bundle.reference_resolver import ReferenceResolver

from scripts.commands.one_line import EXPECTED, describe, one_line_errors
from scripts.core.errors import DataError
from scripts.core.truth import truth

CONFIGS = Path(__file__).parents[2] / "configs"
_REFERRING = ("$", "@", "%")
"""How strings begin that MONAI replaces by something else."""


def check_options(config: str, build: str, debug: Any = False) -> None:
    """Refuse unknown options and wrong values in one line; then build what the command runs, with errors in one line.

    To be named in a config, before the first expression that uses anything.

    Args:
        config: name of the shipped config, whose keys and types of values are the allowed ones.
        build: id of the object that the command runs. MONAI keeps it: nothing is built twice.
        debug: let errors through, with their traceback.

    Raises:
        SystemExit: with code 1, unless `debug`.
    """
    with one_line_errors(False):
        show = truth("debug", debug)
    with one_line_errors(show):
        parser = _calling_parser()
        shipped = json.loads((CONFIGS / config).read_text(encoding="utf-8"))
        check_names(parser.config, shipped)  # type: ignore[arg-type]
        for name in shipped:
            check_type(name, parser[name], default_of(name, shipped))
        _build(parser, build, shipped)


def check_training_options(build: str) -> None:
    """The same for trainings and evaluations, whose options are those of all YAML configs of this bundle together.

    An option that the given configs refer to counts as known. Errors that are no person's show their traceback.

    Args:
        build: id of the object that the command runs.

    Raises:
        SystemExit: with code 1.
    """
    parser = _calling_parser()
    with one_line_errors(False):
        shipped: dict[str, Any] = {}
        for path in sorted(CONFIGS.rglob("*.yaml")):
            shipped |= {str(name).split("::")[0]: value for name, value in ConfigParser.load_config_file(path).items()}
        check_names(parser.config, shipped)  # type: ignore[arg-type]
    try:
        parser.get_parsed_content(build)
    except Exception as error:
        cause = _cause(error)
        if not isinstance(cause, EXPECTED):
            raise
        with one_line_errors(False):
            raise cause from error


def check_names(config: Mapping[str, Any], shipped: Mapping[str, Any]) -> None:
    """Refuse keys that are not in the shipped config and that nothing in this one refers to.

    Raises:
        DataError: with the nearest valid name.
    """
    used = {str(name).split("::")[0] for name in ReferenceResolver.find_refs_in_config(dict(config), "")}
    for name in config:
        if name.startswith("_") or name in shipped or name in used:
            continue
        options = [key for key, value in shipped.items() if not isinstance(value, dict | list)]
        near = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
        hint = f"did you mean --{near[0]}?" if near else f"the options are {', '.join(options)}"
        raise DataError(f"unknown option --{name}; {hint}")


def default_of(name: str, shipped: Mapping[str, Any]) -> Any:
    """The shipped value of an option; where that refers to another place (`@part::name`), the value there.

    What an expression (`$…`) gives is unknown here: None, which any value may replace.
    """
    value = shipped[name]
    while isinstance(value, str) and value.startswith("@"):
        place: Any = shipped
        for key in value[1:].split("::"):
            place = place[int(key)] if isinstance(place, list) else place[key]
        value = place
    return None if isinstance(value, str) and value.startswith(_REFERRING) else value


def check_type(name: str, value: Any, default: Any) -> None:
    """Refuse a value of another kind than the shipped one: a number, a whole number, or true and false.

    Raises:
        DataError: with what was expected.
    """
    if value is default or (isinstance(value, str) and value.startswith(_REFERRING)):
        return
    if isinstance(default, bool):
        truth(name, value)
    elif isinstance(default, int) and (isinstance(value, bool) or not isinstance(value, int)):
        raise DataError(f"--{name} must be a whole number, got {value!r}")
    elif isinstance(default, float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise DataError(f"--{name} must be a number, got {value!r}")


def given(value: Any) -> str | None:
    """An optional text of the command line, where nothing may also be called null or None; numbers are names, too."""
    return None if value is None or str(value) in ("", "null", "None") else str(value)


def usable_device(device: torch.device | str) -> torch.device:
    """The device, if something can be computed on it.

    Raises:
        DataError: with the reason.
    """
    try:
        found = torch.device(device)
        if float(torch.ones(1, device=found).cpu()) == 1.0:
            return found
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".")
    raise DataError(f"--device {device}: cannot be used ({reason}); try --device cpu")


def _calling_parser() -> ConfigParser:
    """The parser that evaluates the config right now: MONAI gives components no other way to the whole of it."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, ConfigParser):
            return owner
        frame = frame.f_back
    raise RuntimeError("check_options works only inside of a config")


def _build(parser: ConfigParser, name: str, shipped: Mapping[str, Any]) -> None:
    try:
        parser.get_parsed_content(name)
    except Exception as error:
        part = _culprit(parser, name)
        names = _options_of(parser, part)
        names = [option for option in names if parser[option] != shipped.get(option)] or names
        options = ", ".join(f"--{option} {parser[option]}" for option in names)
        cause = _cause(error)
        foreseen = isinstance(cause, (*EXPECTED, ValueError))
        reason = " ".join(str(cause).split()) if foreseen else describe(cause)
        raise DataError(f"{options or part}: {reason}") from error


def _culprit(parser: ConfigParser, name: str) -> str:
    """The innermost part that cannot be built although all that it refers to can."""
    for part in ReferenceResolver.find_refs_in_config(parser[name], name):
        try:
            parser.get_parsed_content(part)
        except Exception:
            return _culprit(parser, part) if part != name else name
    return name


def _options_of(parser: ConfigParser, part: str) -> list[str]:
    """Names of the plain values that a part of the config is built from."""
    names = ReferenceResolver.find_refs_in_config(parser[part], part)
    return [name for name in names if "::" not in name and not isinstance(parser[name], dict | list)]


def _cause(error: BaseException) -> BaseException:
    """What MONAI's errors are about, at the end of their chain."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
