"""Judge-eval: checkpoints -> scores on the validation questions and the three general suites."""

from dataclasses import replace
from pathlib import Path

from iar.config import RunFile
from iar.records import Candidate, ModelScores, Outcome, QAPair, read_records, to_json, write_json, write_records
from iar.services.candidates import weights_present
from iar.services.engines import engine_opener
from iar.services.judges import open_judges
from iar.services.scores_outcome import scores_outcome
from iar.services.scoring import SCORES, Examination, score_all
from iar.services.subjects import Subject, baseline_subjects, reference_subjects
from iar.services.suites import domain_items, load_suites
from iar.services.verifiers import VERIFIERS, admit, audit_panel
from iar.services.workspace import Context

SPLIT = "validation"


def run(run_file: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Outcome:
    """Evaluate the candidates of a shard, the baselines, or the three references.

    Writes `verifiers.jsonl`, the audit of the judges, one folder a model, then `scores.jsonl`. Raises UserError before
    anything is generated where a judge falls for more attacks than the run file allows.
    """
    pairs = list(read_records(inputs["data"] / f"{SPLIT}.jsonl", QAPair))
    suites = {"domain": domain_items(pairs, run_file), **load_suites(run_file)}
    judges = open_judges(run_file, context.state / "llm-cache")
    open_engine = engine_opener(run_file, context.state / "llm-cache")
    examination = Examination(run_file, SPLIT, suites, judges, open_engine)
    audits = audit_panel(judges, examination.judged_items, context.seed, context.progress.update)
    out.mkdir(parents=True, exist_ok=True)
    write_records(out / VERIFIERS, audits)
    admit(audits, run_file.evaluate.max_attack_success)

    if "candidates" not in inputs:
        others = baseline_subjects(inputs) or reference_subjects(inputs)
        return scores_outcome(out, score_all(others, examination, out, context.progress.update), inputs, audits)

    candidates = list(read_records(inputs["candidates"] / "candidates.jsonl", Candidate))
    originals, copies = _by_content(candidates)
    subjects = [Subject(one.id, inputs["candidates"] / one.id, one.digest) for one in originals]
    with weights_present(inputs["candidates"], originals, run_file, context.state, context.progress.update):
        scores = score_all(subjects, examination, out, context.progress.update)
    scores += [_copy_scores(scores, candidate, out) for candidate in copies]
    return scores_outcome(out, scores, inputs, audits)


def _by_content(candidates: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates to evaluate, and those that equal one of them; its original may be in another shard."""
    own = {candidate.id for candidate in candidates if not candidate.duplicate_of}
    copies = [candidate for candidate in candidates if candidate.duplicate_of in own]
    return [candidate for candidate in candidates if candidate.duplicate_of not in own], copies


def _copy_scores(scores: list[ModelScores], candidate: Candidate, out: Path) -> ModelScores:
    original = next(one for one in scores if one.model == candidate.duplicate_of)
    copied = replace(original, model=candidate.id, duplicate_of=original.model)
    (out / candidate.id).mkdir(parents=True, exist_ok=True)
    write_json(out / candidate.id / SCORES, to_json(copied))
    return copied
