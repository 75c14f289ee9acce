"""Register: everything before -> the report, the pick as a model folder, and a version in the model registry."""

import json
from pathlib import Path

from iar.config import RunFile
from iar.errors import PermanentError, UserError
from iar.methods.digest import digest_file, digest_json
from iar.records import Candidate, Lineage, Outcome, QAPair, Selection, from_json, read_records, to_json, write_json
from iar.report.card import model_card, summary, write_card
from iar.report.data import collect, results_json
from iar.report.html import write_report
from iar.report.lineage_page import write_lineage_page
from iar.services.candidates import weights_present
from iar.services.checkpoints import recorded_digest
from iar.services.lineage import Row, render_upstream
from iar.services.linked_runs import link_version
from iar.services.linking import link_tree
from iar.services.model_format import add_model_format
from iar.services.registry_heads import head_tag
from iar.services.test_lock import TAKEN_BEFORE
from iar.services.tracking import Tracker
from iar.services.workspace import Context

RESULTS, PLOT, MODEL = "results.json", "frontier.png", "model"


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Write `report.html`, `lineage.html`, `frontier.png` and `results.json`; with a pick `model/`, registered too.

    `model/` is a Hugging Face folder and an MLflow model, with a model card.

    No feasible candidate is reported like any other result, and registers nothing.
    """
    selection = from_json(Selection, json.loads((inputs["selector"] / "selection.json").read_text(encoding="utf-8")))
    decision = digest_json(to_json(selection))

    report = collect(inputs, run_file, context.run_id)
    results = results_json(report)
    write_json(out / RESULTS, results)
    rows = _upstream(context, selection.candidate_digest if selection.pick else decision)
    lineage = [write_lineage_page(out, rows, context.run_id)] if rows else []
    page = write_report(out, report, lineage[0].name if lineage else "")
    context.progress.update(1, 3, "report")

    tracker = Tracker(run_file, context.run_id, context.state)
    for path in (page, *lineage, out / PLOT, out / RESULTS):
        tracker.log_report(path)
    context.progress.update(2, 3, "tracking")

    if not selection.pick:
        entry = _report_entry(page, context, ("decision", decision))
        return Outcome({"registered": 0.0}, "**No feasible candidate**: nothing was registered.", (entry,))

    artifact, picked = _picked(inputs, selection)
    with weights_present(artifact, [picked], run_file, context.state, context.progress.update):
        link_tree(_verified(artifact / picked.id, selection), out / MODEL)
    card = model_card(report)
    _complete(out / MODEL, card, inputs["data"], run_file)
    model = digest_json({"weights": selection.candidate_digest, "decision": decision})
    taken_before = results["taken_before"]
    tags = _tags(selection, decision, model, context.run_id, taken_before) | _head(context)
    version = tracker.register_model(out / MODEL, tags, summary(card))
    _link_version(context, model, tracker.uri, run_file.register.model_name, version)
    context.progress.update(3, 3, "registered")
    name, alias = run_file.register.model_name, run_file.register.alias
    return Outcome(
        metrics={"registered": 1.0, "version": float(version)},
        markdown=f"Registered **{selection.pick}** as `{name}` version {version}, alias `{alias}`.",
        lineage=(
            _model_entry(model, f"{name} {selection.pick}", selection, decision, taken_before),
            _report_entry(page, context, ("decision", decision), ("model", model)),
        ),
    )


def _upstream(context: Context, digest: str) -> list[Row]:
    """Return what an entry was made from, as the registry has it now; [] where it does not know the entry."""
    registry = context.registry()
    try:
        return render_upstream(registry, digest) if registry.labels([digest]) else []
    finally:
        registry.close()


def _head(context: Context) -> dict[str, str]:
    registry = context.registry()
    try:
        return head_tag(registry)
    finally:
        registry.close()


def _link_version(context: Context, model: str, uri: str, name: str, version: str) -> None:
    registry = context.registry()
    try:
        link_version(registry, model, uri, name, version)
    finally:
        registry.close()


def _picked(inputs: dict[str, Path], selection: Selection) -> tuple[Path, Candidate]:
    """Return the artifact that has the pick, and its record."""
    for role, artifact in inputs.items():
        if not role.startswith("candidates"):
            continue
        for candidate in read_records(artifact / "candidates.jsonl", Candidate):
            if candidate.id == selection.pick and (artifact / candidate.id).is_dir():
                return artifact, candidate
    raise UserError(f"register: no candidate input holds the pick {selection.pick!r}: run merge-candidate again")


def _complete(folder: Path, card: str, data: Path, run_file: RunFile) -> None:
    """Add to the weights what a model registry shows and loads; the example asks the first validation question."""
    question = next(read_records(data / "validation.jsonl", QAPair)).question
    limit, model = run_file.evaluate.domain_max_tokens, run_file.model
    add_model_format(folder, question, model.system_turn, limit, model.source)
    write_card(folder, card)


def _verified(folder: Path, selection: Selection) -> Path:
    """Return the folder of the pick. Raises PermanentError when it is not the one that was selected."""
    digest = recorded_digest(folder)
    if digest != selection.candidate_digest:
        raise PermanentError(
            f"{folder}: digest {digest[:12]}, but the selection was made for {selection.candidate_digest[:12]}: "
            "run merge-candidate and what follows again"
        )
    return folder


def _tags(selection: Selection, decision: str, model: str, run_id: str, taken_before: str) -> dict[str, str]:
    marks = {"iar.preference": selection.wish, TAKEN_BEFORE: taken_before}
    return {name: mark for name, mark in marks.items() if mark} | {
        "iar.run_id": run_id,
        "iar.lineage": model,
        "iar.candidate": selection.pick,
        "iar.candidate_digest": selection.candidate_digest,
        "iar.selection": decision,
    }


def _model_entry(model: str, name: str, selection: Selection, decision: str, taken_before: str) -> Lineage:
    payload = {"candidate": selection.pick, "weights": selection.candidate_digest}
    payload |= {"preference": selection.wish} if selection.wish else {}
    payload |= {"test": taken_before} if taken_before else {}
    return Lineage(
        "checkpoint", model, name, payload, (("selected-by", decision), ("weights", selection.candidate_digest))
    )


def _report_entry(page: Path, context: Context, *inputs: tuple[str, str]) -> Lineage:
    return Lineage("report", digest_file(page), f"report of {context.run_id}", {"run_id": context.run_id}, inputs)
