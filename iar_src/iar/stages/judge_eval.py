"""Judge-eval: checkpoints -> scores on the validation questions, old and new, and general suites, and bits per byte."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from iar.config import RunFile
from iar.records import (
    BitsPerByte,
    Candidate,
    ModelScores,
    Outcome,
    QAPair,
    read_records,
    to_json,
    write_json,
    write_records,
)
from iar.services.bpb import ALL_BPB, bpb_texts, read_all_bpb, read_bpb
from iar.services.candidates import weights_present
from iar.services.checkpoints import recorded_digest
from iar.services.engines import engine_opener
from iar.services.judges import open_judges
from iar.services.looks import record_looks
from iar.services.scores_outcome import scores_outcome
from iar.services.scoring import SCORES, Earlier, Examination, keep_bpb, score_all
from iar.services.subjects import Subject, baseline_subjects, reference_subjects
from iar.services.suite_verifiers import SUITE_VERIFIERS, audit_suites
from iar.services.suites import domain_items, load_suites, retention_items
from iar.services.vault import open_vault
from iar.services.verifiers import VERIFIERS, admit, audit_panel
from iar.services.workspace import Context

SPLIT = "validation"
INJECTED = "theta_I"


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Evaluate the candidates of a shard, the baselines, or the references, of theta_I the bits per byte alone.

    Writes `verifiers.jsonl`, the audit of the judges, `suite-verifiers.jsonl`, that of what grades the user's suites,
    one folder a model, then `bpb.jsonl` and `scores.jsonl`. Of candidates that `pruned` leaves out it writes the bits
    per byte alone. Raises UserError before anything is generated where a verifier falls for more attacks than allowed.
    """
    pairs = list(read_records(inputs["data"] / f"{SPLIT}.jsonl", QAPair))
    general = load_suites(run_file)
    suites = {"domain": domain_items(pairs, run_file), **general, **retention_items(inputs["data"], run_file)}
    judges = open_judges(run_file, context.state / "llm-cache")
    open_engine = engine_opener(run_file, context.state / "llm-cache")
    texts = bpb_texts(inputs["data"], general, run_file.evaluate.bpb_bytes)
    vault = open_vault(run_file, context.state, chain.from_iterable(suites.values()))
    examination = Examination(run_file, SPLIT, suites, judges, open_engine, texts, vault)
    audits = audit_panel(judges, examination.judged_items, context.seed, context.progress.update)
    out.mkdir(parents=True, exist_ok=True)
    write_records(out / VERIFIERS, audits)
    admit(audits, run_file.evaluate.max_attack_success)
    if own := audit_suites(run_file, suites, context.seed):
        write_records(out / SUITE_VERIFIERS, own)
    audits += own

    if "candidates" not in inputs:
        others = baseline_subjects(inputs) or reference_subjects(inputs)
        record_looks(out, others, suites, SPLIT, context)
        scores = score_all(others, examination, out, context.progress.update)
        read = [*others, *_read_alone(inputs, examination, out)]
        return _with_bpb(out, _measured(out, read), scores_outcome(out, scores, inputs, audits))

    candidates = list(read_records(inputs["candidates"] / "candidates.jsonl", Candidate))
    originals, copies = _by_content(candidates)
    measured = {one.checkpoint_digest: one for one in read_all_bpb([inputs["pruned"]])} if "pruned" in inputs else {}
    left_out = measured.keys() - _kept(inputs)
    subjects = [Subject(one.id, inputs["candidates"] / one.id, one.digest) for one in originals]
    asked = [one for one in subjects if one.digest not in left_out]
    record_looks(out, asked, suites, SPLIT, context)
    known = {one.model: Earlier(bpb=replace(measured[one.digest], model=one.model)) for one in asked if measured}
    wanted = [one for one in originals if one.digest not in left_out]
    with weights_present(inputs["candidates"], wanted, run_file, context.state, context.progress.update):
        scores = score_all(asked, examination, out, context.progress.update, known)
    scored = {one.model: one for one in scores}
    scores += [_copy_scores(scored[one.duplicate_of], one, out) for one in copies if one.duplicate_of in scored]
    unasked = [replace(measured[one.digest], model=one.model) for one in subjects if one.digest in left_out]
    return _with_bpb(out, [*_measured(out, asked), *unasked], scores_outcome(out, scores, inputs, audits))


def _read_alone(inputs: dict[str, Path], examination: Examination, out: Path) -> list[Subject]:
    """Measure the bits per byte of theta_I, which is asked nothing: what Inject learned before Align came."""
    if "inject" not in inputs or not examination.texts or examination.run_file.evaluate.engine != "transformers":
        return []
    checkpoint = inputs["inject"] / "checkpoint"
    injected = Subject(INJECTED, checkpoint, recorded_digest(checkpoint))
    keep_bpb(out / INJECTED, injected, None, lambda: examination.open_engine(injected), examination.texts)
    return [injected]


def _kept(inputs: dict[str, Path]) -> set[str]:
    """Return the digests of the weights that pruning leaves in."""
    if "pruned" not in inputs:
        return set()
    return set(json.loads((inputs["pruned"] / "kept.json").read_text(encoding="utf-8")))


def _measured(out: Path, subjects: Sequence[Subject]) -> list[BitsPerByte]:
    return list(filter(None, (read_bpb(out / one.model, one.digest) for one in subjects)))


def _with_bpb(out: Path, measured: Sequence[BitsPerByte], outcome: Outcome) -> Outcome:
    """Write the bits per byte of all models and return the report with them in it."""
    write_records(out / ALL_BPB, measured)
    bits = {f"{one.model}/bpb_{text}": getattr(one, text) for one in measured for text in ("source", "general")}
    rows = [f"| {one.model} | {one.source:.3f} | {one.general:.3f} |" for one in measured]
    table = ["", "| bits per byte | source text | general text |", "| --- | ---: | ---: |", *rows] if rows else []
    return replace(outcome, metrics=outcome.metrics | bits, markdown="\n".join([outcome.markdown, *table]))


def _by_content(candidates: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates to evaluate, and those that are the same model as one of them.

    What is the same as a candidate of another shard is in neither: it is evaluated there.
    """
    originals = {candidate.id: candidate for candidate in candidates if not candidate.duplicate_of}
    return list(originals.values()), [candidate for candidate in candidates if candidate.duplicate_of in originals]


def _copy_scores(original: ModelScores, candidate: Candidate, out: Path) -> ModelScores:
    copied = replace(original, model=candidate.id, duplicate_of=original.model)
    (out / candidate.id).mkdir(parents=True, exist_ok=True)
    write_json(out / candidate.id / SCORES, to_json(copied))
    return copied
