"""The report of one registration as a single HTML file: opens offline, loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import logging
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from scripts.core.atomic import writing
from scripts.posterior.result import RegistrationResult
from scripts.report import tables
from scripts.report.findings import Findings, find
from scripts.report.slices import Pictures
from scripts.report.verdict import verdict
from scripts.report.viewer import niivue_script, niivue_version
from scripts.report.words import LEVEL_WORDS, cautions

_ASSETS = Path(__file__).parent / "assets"
_OBLIQUE = 3.0  # degrees from which a tilted grid is worth a word

logger = logging.getLogger(__name__)


def write_report(result: RegistrationResult, path: Path, findings: Findings | None = None) -> None:
    """Write the report of a registration."""
    page = render_report(result, findings)
    with writing(path) as part:
        part.write_text(page, encoding="utf-8")


def render_report(result: RegistrationResult, findings: Findings | None = None) -> str:
    """The report as HTML text."""
    findings = findings or find(result)
    pictures = Pictures(result, findings)
    diagnostics, warnings = result.diagnostics, result.warnings
    volumes = result.labels.volumes if result.labels is not None else []
    weights = [mode.weight for mode in result.modes]
    volume_rows, volume_limit = tables.volume_rows(volumes)
    niivue = niivue_script()
    if niivue is None:
        logger.warning(
            "the report has no interactive view: install the nilearn of requirements.txt, which carries NiiVue"
        )
        view, coarse, scripts = None, None, []
    else:
        view, coarse = pictures.view()
        scripts = [_script(niivue), _script((_ASSETS / "viewer.js").read_text(encoding="utf-8"))]
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.get_template("report.html").render(
        result=result,
        verdict=verdict(diagnostics, findings, warnings, volumes),
        level_words=LEVEL_WORDS,
        figures=tables.key_figures(diagnostics, findings),
        places=pictures.slices(),
        tilt=pictures.frame.tilt if pictures.frame.tilt > _OBLIQUE else None,
        view=view,
        coarse=coarse,
        volumes=volume_rows,
        volume_limit=volume_limit,
        has_truth=any(volume.fixed is not None for volume in volumes),
        has_dice=any(volume.dice is not None for volume in volumes),
        modes=pictures.modes(),
        cautions=cautions(diagnostics, findings, warnings, volumes, weights),
        diagnostics=tables.diagnostic_rows(diagnostics),
        times=tables.time_rows(diagnostics),
        styles=Markup((_ASSETS / "page.css").read_text(encoding="utf-8")),
        scripts=scripts,
        policy=_policy(scripts),
        niivue_version=niivue_version(niivue or ""),
    )


def _script(text: str) -> Markup:
    """A script as it stands in the page; what would end its element early is written otherwise, with equal meaning."""
    return Markup(text.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def _policy(scripts: list[Markup]) -> str:
    """The page's content security policy: only its own scripts run, and the browser refuses every request outside."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii") for text in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes) or "'none'"
    return (
        f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; connect-src data: blob:; "
        f"script-src {allowed}; base-uri 'none'; form-action 'none'"
    )
