"""The model card: what a registered model is, how it was made and measured, and where its limits are."""

from pathlib import Path
from typing import Any

from iar.report import view
from iar.report.data import ReportData, offline_parts, results_json
from iar.report.markdown import code, plain
from iar.report.tables import difference_text, results_markdown

CARD = "README.md"


def model_card(report: ReportData) -> str:
    """Return the card of the pick as Markdown. Every text that is not ours is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
    # Marked as ours, so that it is not escaped once more.
    environment.filters |= {"code": lambda text: Markup(code(str(text))), "percent": _percent}
    pick = next(one for one in report.candidates if one.id == report.selection.pick)
    return environment.get_template("card.md.j2").render(
        report=report,
        view=view,
        pick=pick,
        results=Markup(results_markdown(results_json(report))),
        offline=offline_parts(report.run_file),
        facts=[(name, value) for name, value in view.provenance(report) if _identifies(name, pick.id)],
        losses=[difference_text(vars(one)) for one in report.differences if _is_loss(one)],
    )


def summary(card: str) -> str:
    """Return the beginning of a card, before its first section."""
    return card.partition("\n## ")[0].strip()


def write_card(folder: Path, text: str) -> None:
    """Put a card into a model's folder, whose files may be shared with others."""
    part = folder / f"{CARD}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(folder / CARD)


def _identifies(fact: str, pick: str) -> bool:
    """Whether a fact is about this model: the report has the weights and the code of everything beside it."""
    return not fact.startswith(("Weights of", "Code of")) or fact.startswith(
        (f"Weights of {pick},", "Weights of theta_0")
    )


def _is_loss(difference: Any) -> bool:
    return bool(difference.axis == "general" and difference.against == "theta_0" and difference.high < 0)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
