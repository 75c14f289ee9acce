"""The report page: one file that loads nothing, runs nothing and treats every text in it as untrusted."""

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iar.report import diagnostics, length_response, oracle, plots, profile, rolling, tables, view
from iar.report.data import ReportData, offline_parts, unchecked_suites

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent
# NUL and its kind are no HTML; direction marks could make a text read as another.
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def write_report(out: Path, report: ReportData, lineage: str = "") -> Path:
    """Write `report.html` and `frontier.png` under `out`; return the page's path.

    `lineage` is the name of a page beside it to link.
    """
    (out / "frontier.png").write_bytes(plots.frontier(report, "png"))
    page = out / "report.html"
    page.write_text(render(report, lineage), encoding="utf-8")
    return page


def render(report: ReportData, lineage: str = "") -> str:
    """Return the page as text."""
    import yaml
    from markupsafe import Markup

    style = (FOLDER / "report.css").read_text(encoding="utf-8")
    settings = report.run_file.model_dump(mode="json")
    return environment().get_template("report.html.j2").render(
        report=report,
        lineage=lineage,
        view=view,
        diagnostics=diagnostics,
        columns=(*tables.COLUMNS, tables.RETAINED) if report.rolling.sets else tables.COLUMNS,
        rolling=rolling,
        descriptions=tables.DESCRIPTIONS | tables.BASELINES,
        recipe_titles=tables.RECIPE_TITLES,
        offline=offline_parts(report.run_file),
        unchecked=unchecked_suites(report),
        style=Markup(style),
        style_hash=b64encode(sha256(style.encode()).digest()).decode(),
        frontier=_data_url(plots.frontier(report, "svg")),
        losses=_data_url(plots.loss_curves(report)),
        oracle=oracle,
        watched=_data_url(oracle.oracle_curves(report)) if report.oracle else "",
        lengths=length_response,
        responses=_data_url(length_response.length_response(report)) if report.scorers else "",
        merges=profile,
        profile=_data_url(profile.profile(report)) if report.layers else "",
        run_file_text=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=100),
    )  # fmt: skip


def visible(text: str) -> str:
    """Return `text` with characters that a browser would not show, or act upon, made visible."""
    return INVISIBLE.sub("\N{REPLACEMENT CHARACTER}", text)


def duration(seconds: float) -> str:
    """Return a time as `42 s`, `7 min 05 s` or `3 h 20 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def environment() -> "Environment":
    """Return the environment of the templates: everything is escaped, nothing may be undefined."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    made.filters |= {
        "duration": duration,
        "percent": lambda share: f"{100 * share:.1f} %",
        "whole": lambda number: f"{number:,}",
        "short": lambda digest: digest[:12],
    }
    return made


def _finalize(value: Any) -> Any:
    """Clean plain strings only: what is already markup is the page's own."""
    return visible(value) if type(value) is str else value


def _data_url(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{b64encode(svg).decode()}"
