"""Locked test: once the pick is fixed, the held-out questions for it, the references and the baselines."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.inert_markdown import inert
from iar.methods.paired import PairedDifference, paired
from iar.records import (
    RETENTION,
    Candidate,
    CrossDocumentPair,
    EvalItem,
    ItemScore,
    ModelScores,
    Outcome,
    QAPair,
    Regression,
    Selection,
    TestReading,
    from_json,
    read_records,
    to_json,
    write_json,
    write_records,
)
from iar.services.bpb import bpb_texts
from iar.services.candidates import weights_present
from iar.services.diagnostic_items import unseen_texts
from iar.services.diagnostics import diagnose
from iar.services.engines import engine_opener
from iar.services.evaluations import GENERAL
from iar.services.headroom import measure_beside
from iar.services.judges import Judge, open_judges
from iar.services.looks import record_looks
from iar.services.non_regression import compare, write_regressions
from iar.services.retrieval import require_search
from iar.services.scores_outcome import scores_outcome
from iar.services.scoring import ITEMS, Examination, general_results, score_all
from iar.services.subjects import Subject, baseline_subjects, reference_subjects
from iar.services.suite_verifiers import read_suite_audits
from iar.services.suites import CROSS, domain_items, load_suites, retention_items
from iar.services.test_lock import open_locked_test
from iar.services.vault import open_vault
from iar.services.verifier_runs import wrong_answers_in
from iar.services.verifiers import OWN_ATTACKS, QUESTIONS_PER_KIND, audit_each, read_audits, regenerated_suite
from iar.services.workspace import Context

SPLIT = "test"
PAIRED, QUESTIONS, CROSS_QUESTIONS = "paired.json", "questions.jsonl", "cross-questions.jsonl"
READING = "reading.json"
AGAINST = ("vanilla", "theta_0", "theta_IA")
AXES = {"domain": ("domain",), "general": GENERAL}
VALIDATED = ("references", "baseline_scores")


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Evaluate the pick, the references and the baselines on the test.

    What is retained of earlier document sets is told by their validation questions, never by their tests.

    Writes `own-attacks.jsonl` (what the judges make of the pick's own wrong answers, dressed up), `questions.jsonl` and
    `cross-questions.jsonl` (what was unlocked), `reading.json` (who had seen them before), a folder a model,
    `scores.jsonl` and `paired.json`; with `diagnose.enabled`, `diagnostics.json` and the replies behind it.
    The general suites are the same prompts as at validation: where `references`, `scores_N` and `baseline_scores`
    are given, their replies and votes for the same weights are taken over. Without a pick the test is not read.
    """
    selection = from_json(Selection, json.loads((inputs["selector"] / "selection.json").read_text(encoding="utf-8")))
    if not selection.pick:
        write_records(out / QUESTIONS, [])
        write_json(out / PAIRED, {"pick": "", "differences": []})
        outcome = scores_outcome(out, [], inputs)
        return Outcome(outcome.metrics, "**No feasible candidate**: the test was not read.", ())
    baselines = baseline_subjects(inputs)
    artifact, picked = _pick(inputs, selection)
    pick = Subject(picked.id, artifact / picked.id, picked.digest)
    subjects = [pick, *reference_subjects(inputs), *baselines]
    suites = load_suites(run_file)
    judges = open_judges(run_file, context.state / "llm-cache")
    # What may be missing is looked for before the test is opened.
    if run_file.diagnose.enabled:
        require_search()
    unseen = unseen_texts(run_file) if run_file.diagnose.enabled else []
    validated = [folder for role, folder in inputs.items() if role in VALIDATED or role.startswith("scores_")]
    _attack_again(judges, validated, selection.pick, out, context)
    if run_file.diagnose.enabled and run_file.diagnose.beside:
        texts = bpb_texts(inputs["data"], suites, run_file.evaluate.bpb_bytes)
        measure_beside(run_file, texts, out, context.state, context.progress.update)
    unlocked, reading = _read_test(inputs["data"], selection, context)
    cross = [pair for pair in unlocked if isinstance(pair, CrossDocumentPair)]
    pairs = [pair for pair in unlocked if not isinstance(pair, CrossDocumentPair)]
    write_records(out / QUESTIONS, pairs)
    write_json(out / READING, to_json(reading))
    suites |= {"domain": domain_items(pairs, run_file), **retention_items(inputs["data"], run_file)}
    if cross:
        write_records(out / CROSS_QUESTIONS, cross)
        suites |= {CROSS: domain_items(cross, run_file, CROSS)}
    open_engine = engine_opener(run_file, context.state / "llm-cache")
    vault = open_vault(run_file, context.state, chain.from_iterable(suites.values()))
    examination = Examination(run_file, SPLIT, suites, judges, open_engine, vault=vault)

    record_looks(out, subjects, suites, SPLIT, context)
    earlier = {subject.model: general_results(subject, validated) for subject in subjects}
    with weights_present(artifact, [picked], run_file, context.state, context.progress.update):
        scores = score_all(subjects, examination, out, context.progress.update, earlier)
        if run_file.diagnose.enabled:
            diagnosed = [one for one in subjects if one.model in (selection.pick, "theta_0")]
            cache, update = context.state / "llm-cache", context.progress.update
            diagnose(diagnosed, examination, inputs["data"], pairs, unseen, scores, out, cache, update)

    against = [*AGAINST, *(one.model for one in subjects[1:] if one.model not in AGAINST)]
    axes = AXES | ({RETENTION: (RETENTION,)} if RETENTION in suites else {})
    differences = list(_differences(out, selection.pick, against, axes, run_file))
    write_json(out / PAIRED, {"pick": selection.pick, "differences": [to_json(one) for one in differences]})
    regressions = _regressions(run_file, suites, selection, out, context)
    write_regressions(out, regressions)
    given = [inputs["references"]] if "references" in inputs else []
    audits = [one for folder in given for one in (*read_audits(folder), *read_suite_audits(folder))]
    outcome = scores_outcome(out, scores, inputs, audits, reading.mark)
    warning = [f"**Not a first look**: {reading.mark}."] if reading.mark else []
    warning += [f"**Regression** on {inert(one.text)}." for one in regressions if one.regressed]
    text = [*warning, outcome.markdown, *_slice(scores, len(cross)), _table(differences)]
    metrics = {"earlier_reads": float(reading.earlier_reads), "seen_before": float(reading.seen_before)}
    metrics |= {f"non_regression/{one.suite}": one.points for one in regressions}
    return Outcome(outcome.metrics | metrics, "\n\n".join(text), outcome.lineage)


def _attack_again(judges: Sequence[Judge], validated: Sequence[Path], pick: str, out: Path, context: Context) -> None:
    """Write what the judges make of attacks that stand around wrong answers of the pick itself: `iar promote` looks."""
    own = list(wrong_answers_in(validated, pick))
    if own:
        suite = regenerated_suite(own, QUESTIONS_PER_KIND, context.seed)
        write_records(out / OWN_ATTACKS, audit_each(judges, suite, context.progress.update))


def _regressions(
    run_file: RunFile, suites: dict[str, list[EvalItem]], selection: Selection, out: Path, context: Context
) -> list[Regression]:
    scores = {model: list(read_records(out / model / ITEMS, ItemScore)) for model in (selection.pick, "theta_0")}
    registry = context.registry()
    try:
        return compare(run_file, suites, selection, scores, context.state, registry)
    finally:
        registry.close()


def _read_test(data: Path, selection: Selection, context: Context) -> tuple[list[QAPair], TestReading]:
    registry = context.registry()
    try:
        return open_locked_test(data, selection, registry, context.run_id, context.seed)
    finally:
        registry.close()


def _pick(inputs: dict[str, Path], selection: Selection) -> tuple[Path, Candidate]:
    """Return the artifact of the picked candidate, and its record.

    Raises UserError where no input holds the weights that were selected.
    """
    for role, artifact in inputs.items():
        if not role.startswith("candidates"):
            continue
        for candidate in read_records(artifact / "candidates.jsonl", Candidate):
            if candidate.id == selection.pick and candidate.digest == selection.candidate_digest:
                return artifact, candidate
    raise UserError(
        f"locked-test: no candidate input holds the pick {selection.pick!r} with weights "
        f"{selection.candidate_digest[:12]}; run merge-candidate and the selector again"
    )


def _differences(
    out: Path, pick: str, against: Iterable[str], axes: Mapping[str, Sequence[str]], run_file: RunFile
) -> Iterator[PairedDifference]:
    resamples, seed = run_file.evaluate.resamples, run_file.run.seed
    ours = list(read_records(out / pick / ITEMS, ItemScore))
    for model in against:
        theirs = list(read_records(out / model / ITEMS, ItemScore))
        for axis, suites in axes.items():
            yield paired(axis, suites, ours, theirs, resamples, seed)


def _slice(scores: Iterable[ModelScores], questions: int) -> Iterator[str]:
    """Yield one line on the questions over two documents, where there are any."""
    if questions:
        points = ((one.model, one.suite(CROSS)) for one in scores)
        each = ", ".join(f"{model} {own.points:.1f} ({own.low:.1f}-{own.high:.1f})" for model, own in points)
        yield f"Questions over two documents, {questions}, in no other score: {each}"


def _table(differences: list[PairedDifference]) -> str:
    rows = [
        f"| {one.model} - {one.against} | {one.axis} | {one.points:+.1f} ({one.low:+.1f} to {one.high:+.1f}) |"
        for one in differences
    ]
    return "\n".join(["| difference, paired | axis | points |", "| --- | --- | --- |", *rows])
