"""The report of one registration as a single HTML file: opens offline, loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from scripts.core.atomic import writing
from scripts.posterior.result import RegistrationResult
from scripts.report import tables
from scripts.report.findings import find
from scripts.report.slices import Pictures
from scripts.report.verdict import verdict
from scripts.report.viewer import niivue_script, niivue_version
from scripts.report.words import LEVEL_WORDS, cautions

_ASSETS = Path(__file__).parent / "assets"
_OBLIQUE = 3.0  # degrees from which a tilted grid is worth a word

logger = logging.getLogger(__name__)


def write_report(result: RegistrationResult, path: Path) -> None:
    """Write the report of a registration.

    Args:
        result: what the registration found; labels, modes and each of the diagnostics may be missing.
        path: of the HTML file, which appears whole or not at all.
    """
    page = render_report(result)
    with writing(path) as part:
        part.write_text(page, encoding="utf-8")


def render_report(result: RegistrationResult) -> str:
    """The report as HTML text."""
    findings = find(result)
    pictures = Pictures(result, findings)
    volumes = result.labels.volumes if result.labels is not None else []
    volume_rows, volume_limit = tables.volume_rows(volumes)
    niivue = niivue_script()
    if niivue is None:
        logger.warning(
            "the report has no interactive view: install the nilearn of requirements.txt, which carries NiiVue"
        )
    view, coarse = pictures.view() if niivue is not None else ({}, None)
    spacing = "" if coarse is None else " × ".join(f"{size:.2g}" for size in coarse.grid.spacing)
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = [_script(niivue), _script((_ASSETS / "viewer.js").read_text(encoding="utf-8"))] if niivue else []
    return environment.get_template("report.html").render(
        result=result,
        verdict=verdict(result.diagnostics, findings, result.warnings, volumes),
        level_words=LEVEL_WORDS,
        figures=tables.key_figures(result.diagnostics, findings),
        places=pictures.slices(),
        tilt=pictures.frame.tilt if pictures.frame.tilt > _OBLIQUE else None,
        view=_json(view) if view else None,
        backgrounds={key: volume["name"] for key, volume in view.get("backgrounds", {}).items()},
        overlays={key: volume["name"] for key, volume in view.get("overlays", {}).items()},
        view_shape=view.get("shape", []),
        has_peak=view.get("peak") is not None,
        view_spacing=spacing,
        view_resampled=coarse is not None and coarse.changed,
        volumes=volume_rows,
        volume_limit=volume_limit,
        has_truth=any(volume.fixed is not None for volume in volumes),
        has_dice=any(volume.dice is not None for volume in volumes),
        modes=pictures.modes(),
        cautions=cautions(
            result.diagnostics, findings, result.warnings, volumes, [mode.weight for mode in result.modes]
        ),
        diagnostics=tables.diagnostic_rows(result.diagnostics),
        times=tables.time_rows(result.diagnostics),
        versions=tables.version_text(result.diagnostics),
        files=tables.output_files(result.labels is not None, bool(result.modes)),
        styles=Markup((_ASSETS / "page.css").read_text(encoding="utf-8")),
        scripts=scripts,
        policy=_policy(scripts),
        niivue_version=niivue_version(niivue or ""),
    )


def _script(text: str) -> Markup:
    """A script as it stands in the page; what would end its element early is written otherwise, with equal meaning."""
    return Markup(text.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def _json(data: dict[str, Any]) -> Markup:
    """Data inside of a script element: no character of it can end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _policy(scripts: list[Markup]) -> str:
    """The page's content security policy: only its own scripts run, and the browser refuses every request outside."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii") for text in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes) or "'none'"
    return (
        f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; connect-src data: blob:; "
        f"script-src {allowed}; base-uri 'none'; form-action 'none'"
    )
