"""What an evaluation stage reports: `scores.jsonl`, numbers and a table for the UI, entries for the registry."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from iar.methods.digest import digest_file, digest_json
from iar.methods.inert_markdown import inert
from iar.methods.provenance import UNCHECKED, scores_payload
from iar.methods.verification import attack_success
from iar.records import Lineage, ModelScores, Outcome, SuiteScore, VerifierAudit, write_records
from iar.services.decontamination import read_checks, unchecked
from iar.services.eval_sets import Measured, dataset_asked
from iar.services.evaluations import GENERAL
from iar.services.looks import read_looks
from iar.services.scoring import VOTES
from iar.services.suites import SUITES
from iar.services.verifiers import audit_entry


def scores_outcome(
    out: Path,
    all_scores: Sequence[ModelScores],
    inputs: Mapping[str, Path],
    audits: Sequence[VerifierAudit] = (),
    taken_before: str = "",
) -> Outcome:
    """Write `scores.jsonl` under `out` and return the report on all models and on who judged them.

    inputs: the stage's, where what training data was checked against stands in the datasets. taken_before: what the
    registry's entries must say of a test that was no first look, "" for one that was.
    """
    # Equal scores on the questions of two datasets are two entries: a retraction may take one and leave the other.
    data = dataset_asked(inputs)
    all_scores = [replace(scores, dataset=data) for scores in all_scores]
    write_records(out / "scores.jsonl", all_scores)
    metrics: dict[str, float] = {}
    for scores in all_scores:
        metrics[f"{scores.model}/general"] = scores.general
        metrics |= {f"{scores.model}/{suite.suite}": suite.points for suite in scores.suites}
    looks = _looks(out)
    metrics |= {f"looks/{suite}": float(count) for suite, count in looks.items()}
    metrics |= {f"attack success/{one.verifier}": attack_success(one.attacks).value or 0.0 for one in audits}
    verifiers = tuple(map(audit_entry, audits))
    judged = tuple(("judged-by", one.digest) for one in verifiers)
    votes = {scores.model: _votes(out / scores.model / VOTES, scores, judged) for scores in all_scores}
    missing = _unchecked(all_scores, inputs)
    measured = Measured.read(out, inputs)
    entries = tuple(
        _entry(
            scores, missing,
            [*judged, *(("settled-from", one.digest) for one in votes[scores.model]), *measured.inputs(scores)],
            taken_before,
        )
        for scores in all_scores
    )  # fmt: skip
    warnings = [
        f"**UNCHECKED**: {name}: training data may give its prompts away ({inert(why)})"
        for name, why in missing.items()
    ]
    text = [scores_table(all_scores, looks), *_audit_line(audits), *warnings]
    lineage = (*verifiers, *measured.entries, *chain.from_iterable(votes.values()), *entries)
    return Outcome(metrics, "\n\n".join(text), lineage)


def _audit_line(audits: Sequence[VerifierAudit]) -> list[str]:
    each = [f"{one.verifier} {attack_success(one.attacks)}" for one in audits]
    return [f"Attacks that the judges score above 0: {', '.join(each)}"] if each else []


def _unchecked(all_scores: Sequence[ModelScores], inputs: Mapping[str, Path]) -> dict[str, str]:
    """Return the evaluations behind the scores that some training data was not checked against, and why."""
    if not all_scores:
        return {}
    own = list(dict.fromkeys(scores.split for scores in all_scores))
    why = unchecked((check for folder in inputs.values() for check in read_checks(folder)), [*own, *GENERAL])
    asked = dict.fromkeys(suite.suite for scores in all_scores for suite in scores.suites)
    return {name: why[name] for name in dict.fromkeys([*own, *GENERAL, *asked]) if name in why}


def _looks(out: Path) -> dict[str, int]:
    """Return by suite how many models had been scored on its set after these."""
    found: dict[str, int] = {}
    for one in read_looks([out]):
        found[one.suite] = max(found.get(one.suite, 0), one.looks)
    return found


def scores_table(all_scores: Sequence[ModelScores], looks: Mapping[str, int] | None = None) -> str:
    """Return scores in points with 95 % intervals as a Markdown table, `looks` by suite in its last line."""
    lines = [f"| model | {' | '.join(SUITES)} | general |", "| --- |" + " --- |" * (len(SUITES) + 1)]
    for scores in all_scores:
        name = f"{scores.model} = {scores.duplicate_of}" if scores.duplicate_of else scores.model
        cells = [_cell(scores.suite(suite)) for suite in SUITES]
        general = _interval(scores.general, scores.general_low, scores.general_high)
        lines.append(f"| {' | '.join([name, *cells, general])} |")
    if looks:
        cells = [str(looks.get(suite, "-")) for suite in SUITES]
        lines.append(f"| {' | '.join(['models scored on the set so far', *cells, '-'])} |")
    return "\n".join(lines)


def _cell(score: SuiteScore) -> str:
    unscored = f", {score.unscored} unscored" if score.unscored else ""
    return _interval(score.points, score.low, score.high) + unscored


def _interval(points: float, low: float, high: float) -> str:
    return f"{points:.1f} ({low:.1f}-{high:.1f})"


def _votes(path: Path, scores: ModelScores, judged: tuple[tuple[str, str], ...]) -> list[Lineage]:
    """Return the entry of a model's votes, by their file and the model: two models may say and be judged the same.

    There is none for the duplicate of another model.
    """
    if not path.is_file():
        return []
    inputs = (("cast-on", scores.checkpoint_digest), *judged)
    payload = {"file": digest_file(path), "cast_on": scores.checkpoint_digest}
    return [Lineage("votes", digest_json(payload), f"votes on {scores.model}, {scores.split}", payload, inputs)]


def _entry(
    scores: ModelScores, missing: Iterable[str], further: Iterable[tuple[str, str]], taken_before: str
) -> Lineage:
    """Return the entry of a model's scores; its digest is that of `scores_payload`, by which others find it."""
    payload = scores_payload(scores, taken_before)
    inputs = (("evaluated", scores.checkpoint_digest), *further)
    shown = payload | ({UNCHECKED: names} if (names := list(missing)) else {})
    return Lineage("scores", digest_json(payload), f"{scores.model} on {scores.split}", shown, inputs)
