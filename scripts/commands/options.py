"""What a person sets on the command line, checked before anything is computed.

MONAI takes every option that it is given: one that nothing uses is ignored, and a wrong value ends in its traceback,
because the objects of a config are built outside of our code. So the list of expressions that a command runs begins
with :func:`check_options`. It knows no option by name: names and types are those of the shipped config, limits those
that the constructors state.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser
from monai.bundle.reference_resolver import ReferenceResolver

from scripts.commands.one_line import EXPECTED, cause_of, describe, one_line_errors
from scripts.core.checked import Number, Truth, Whole, check, unknown
from scripts.core.errors import DataError
from scripts.inference.model import FACTS

CONFIGS = Path(__file__).parents[2] / "configs"
_KINDS: dict[type, Any] = {bool: Truth, int: Whole, float: Number}
"""What replaces a shipped value of these types."""
_REFERRING = ("$", "@", "%")
"""How strings begin that MONAI replaces by something else."""


def check_options(config: str, build: str, debug: Any = False, model: str | None = None) -> None:
    """Refuse unknown options and wrong values in one line; then build what the command runs, with errors in one line.

    To be named in a config, before the first expression that uses anything.

    Args:
        config: name of the shipped config, whose keys and types of values are the allowed ones.
        build: id of the object that the command runs. MONAI keeps it: nothing is built twice.
        model: id of the model, which knows how it was trained: options of trainings are no mistake if they say the
            same.

    Raises:
        SystemExit: with code 1, unless `debug`.
    """
    with one_line_errors(False):
        show = check("debug", debug, Truth)
    with one_line_errors(show):
        parser = _calling_parser()
        shipped = ConfigParser.load_config_file(CONFIGS / config)
        options = parser.get()
        facts = {} if model is None else {name: parser[name] for name in options if name in FACTS}
        check_names({name: value for name, value in options.items() if name not in facts}, shipped)
        for name in shipped:
            check_type(name, parser[name], default_of(name, shipped))
        if model is not None:
            _build(parser, model, shipped)
            parser.get_parsed_content(model).check(facts)
        _build(parser, build, shipped)


def check_training_options(build: str) -> None:
    """The same for trainings, evaluations and calibrations, which are made of several configs.

    Known are the options of the shipped ones that this run is made of, and all that the given configs refer to. Errors
    that are no person's show their traceback.

    Raises:
        SystemExit: with code 1.
    """
    parser = _calling_parser()
    with one_line_errors(False):
        check_names(parser.get(), shipped_parts(parser.get()))
    try:
        parser.get_parsed_content(build)
    except Exception as error:
        cause = cause_of(error)
        if not isinstance(cause, EXPECTED):
            raise
        with one_line_errors(False):
            raise cause from error


def check_names(config: Mapping[str, Any], shipped: Mapping[str, Any]) -> None:
    """Refuse keys that neither the shipped config has nor anything in this one refers to, with the nearest name."""
    used = {str(name).split("::")[0] for name in ReferenceResolver.find_refs_in_config(dict(config), "")}
    for name in config:
        if name.startswith("_") or name in shipped or name in used or name == "finalize":  # which MONAI runs at the end
            continue
        runs = [run for run, options in _runs().items() if not isinstance(options.get(name, {}), dict)]
        if runs:
            raise DataError(f"--{name} is an option of run {', '.join(runs)}, not of this run")
        raise unknown(name, [key for key, value in shipped.items() if not isinstance(value, dict | list)])


def shipped_parts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The shipped configs that a merged one is made of, as one; those that only override others add nothing."""
    return {name: value for run, part in _runs().items() if run in config for name, value in part.items()}


def default_of(name: str, shipped: Mapping[str, Any]) -> Any:
    """The shipped value of an option; where that refers to another place (`@part::name`), the value there.

    What an expression (`$…`) gives is unknown here: None, which any value may replace.
    """
    value = shipped[name]
    while isinstance(value, str) and value.startswith("@"):
        value = ConfigParser(dict(shipped))[value[1:]]
    return None if isinstance(value, str) and value.startswith(_REFERRING) else value


def check_type(name: str, value: Any, default: Any) -> None:
    """Refuse a value of another kind than the shipped one, a number, a whole number or truth, by a DataError."""
    if type(default) in _KINDS and not (isinstance(value, str) and value.startswith(_REFERRING)):
        check(name, value, _KINDS[type(default)])


def given(value: Any) -> str | None:
    """An optional text of the command line, where nothing may also be called null or None; numbers are names, too."""
    return None if value is None or str(value) in ("", "null", "None") else str(value)


def _calling_parser() -> ConfigParser:
    """The parser that evaluates the config right now: MONAI gives components no other way to the whole of it."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, ConfigParser):
            return owner
        frame = frame.f_back
    raise RuntimeError("check_options works only inside of a config")


def _runs() -> dict[str, dict[str, Any]]:
    """The shipped configs that can be run, by the name of what they run."""
    files = [path for kind in ("json", "yaml") for path in CONFIGS.glob(f"*.{kind}")]
    configs = [ConfigParser.load_config_file(path) for path in sorted(files)]
    return {config["run"].removeprefix("%"): config for config in configs if "run" in config}


def _build(parser: ConfigParser, name: str, shipped: Mapping[str, Any]) -> None:
    try:
        parser.get_parsed_content(name)
    except Exception as error:
        part = _culprit(parser, name)
        names = _options_of(parser, part)
        names = [option for option in names if parser[option] != shipped.get(option)] or names
        options = ", ".join(f"--{option} {parser[option]}" for option in names)
        cause = cause_of(error)
        foreseen = isinstance(cause, (*EXPECTED, ValueError))
        reason = " ".join(str(cause).split()) if foreseen else describe(cause)
        named = reason.startswith(("--", "unknown option"))  # errors of checked values say whose they are
        raise DataError(reason if named else f"{options or part}: {reason}") from error


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
