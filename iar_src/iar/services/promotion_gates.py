"""The gates of a promotion: what must be true of a finished run before its model may serve, each with its finding."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

from iar.config import EvaluateSection
from iar.methods.verification import attack_success, objection, surely_fooled
from iar.records import (
    EvalCheck,
    FunnelStep,
    from_json,
)
from iar.services.checkpoints import weights_digest
from iar.services.decontamination import read_checks, unchecked
from iar.services.evaluations import GENERAL, OWN
from iar.services.finalist import EVALUATED, Finalist
from iar.services.findings import Check, guarded
from iar.services.judge_audit import audit_votes
from iar.services.judges import judge_names
from iar.services.lineage import way_up
from iar.services.model_versions import MODEL, ModelVersions
from iar.services.non_regression import read_regressions
from iar.services.registry import Registry, short_id
from iar.services.registry_heads import HEAD_TAG, heads_in
from iar.services.retraction import taints
from iar.services.test_lock import reading_of
from iar.services.verifiers import OWN_ATTACKS, read_audits

SHOWN = 3
# One vote in twenty without a score: the scores stand on what is left, and no longer on the panel.
MOST_FAILED = 0.05
# Two judges that differ on every second reply measure different things; the paper's first two agreed on 71 %.
LEAST_AGREEMENT = 0.5


def gates(one: Finalist, version: str, versions: ModelVersions, registry: Registry, reused: bool) -> Iterator[Check]:
    """Yield the finding of every gate; `reused` lets a test pass that other models had taken before."""
    yield from check_registry(version, versions, registry)
    yield from guarded("selection", lambda: check_selection(one, registry))
    yield from guarded("test", lambda: check_test(one, registry, reused))
    yield from guarded("non-regression", lambda: check_non_regression(one))
    yield from guarded("decontamination", lambda: check_decontamination(one))
    yield from guarded("retraction", lambda: check_retraction(one.lineage, registry))
    yield from guarded("verifiers", lambda: check_verifiers(one))
    yield from guarded("audit", lambda: check_audit(one))
    yield from guarded("files", lambda: check_files(one, version, versions))
    if one.run_file.register.require_signature:
        yield from guarded("signature", lambda: check_signature(one, registry))


def check_selection(one: Finalist, registry: Registry) -> Check:
    """The pick met every floor of the rule, and the registry holds the decision."""
    selection = one.selection
    if not registry.labels([one.decision]):
        detail = f"the registry does not know the decision for {selection.pick}"
        return Check("selection", "fail", detail, "check register.registry_url, or run the run file again")
    detail = f"{selection.pick} is feasible, one of {len(selection.verdicts)} considered"
    if selection.wish:
        detail += f"; picked by {selection.wish} instead of the rule's own preference"
    return Check("selection", "pass", detail)


def check_registry(version: str, versions: ModelVersions, registry: Registry) -> Iterator[Check]:
    """The registry holds the ends of its chains that MLflow saw: no older copy of it was put in its place.

    Nothing is said of a version that was registered before such ends were kept.
    """
    heads = heads_in([versions.tags(version).get(HEAD_TAG, "")], registry)
    if faults := registry.lacking(heads):
        fix = "put the right database back; iar lineage verify --run RUN.yaml names what else is wrong"
        yield Check("registry", "fail", faults[0], fix)
    elif heads:
        yield Check("registry", "pass", "holds the ends of its chains that MLflow has of it")


def check_test(one: Finalist, registry: Registry, reused: bool) -> Check:
    """The held-out test was taken by this pick, and by no other model before it."""
    if one.scores is None:
        return Check("test", "fail", f"{one.selection.pick} has no test scores", "run the run file again")
    reading = reading_of(one.decision, registry)
    if reading is None:
        detail = f"the registry knows of no reading of the test for {one.selection.pick}"
        return Check("test", "fail", detail, "check register.registry_url, or run the run file again")
    if not reading.mark:
        return Check("test", "pass", f"taken once, {one.scores.domain:.1f} domain, {one.scores.general:.1f} general")
    detail = f"{reading.mark}, so its scores flatter"
    if reused:
        return Check("test", "warn", detail, "hold out new questions with qa_build.split_salt")
    return Check("test", "fail", detail, "hold out new questions with qa_build.split_salt, or accept --test-reused")


def check_non_regression(one: Finalist) -> Check:
    """On no non-regression set the pick is worse, beyond chance, than the model before it."""
    found = read_regressions(one.artifacts["locked-test"].path)
    if worse := [regression for regression in found if regression.regressed]:
        detail = "; ".join(regression.text for regression in worse)
        return Check("non-regression", "fail", detail, "train again, or promote another run")
    if not found:
        return Check("non-regression", "pass", "no suite has non_regression: true")
    return Check("non-regression", "pass", "; ".join(regression.text for regression in found))


def check_decontamination(one: Finalist) -> Check:
    """Documents and questions went through decontamination to the last one, against every evaluation of the run."""
    data = one.artifacts["qa-build"].path
    funnel = [from_json(FunnelStep, step) for step in json.loads((data / "funnel.json").read_text(encoding="utf-8"))]
    step = next((step for step in funnel if step.step == "decontaminated"), None)
    if step is None or step.in_ != step.kept + sum(step.dropped.values()):
        detail = f"{data / 'funnel.json'} records no complete decontamination"
        return Check("decontamination", "fail", detail, "delete that artifact and run the run file again")
    checks = read_checks(data)
    if missing := unchecked(checks, [*OWN, *GENERAL, *one.run_file.qa_build.evals]):
        detail = f"unchecked: {_some([f'{name} ({why})' for name, why in missing.items()])}"
        fix = "give files that can be read under evaluate and qa_build.evals, then delete that artifact and run again"
        return Check("decontamination", "fail", detail, fix)
    detail = f"{step.in_} questions, {sum(step.dropped.values())} of them dropped, and {_items(checks)} documents"
    evaluations = {check.evaluation for check in checks}
    return Check("decontamination", "pass", f"{detail}, against {len(evaluations)} evaluations")


def check_retraction(lineage: str, registry: Registry) -> Check:
    """Nothing the model was made from was retracted."""
    if not registry.labels([lineage]):
        detail = f"the registry does not know {short_id('checkpoint', lineage)}"
        return Check("retraction", "fail", detail, "check register.registry_url, or run the run file again")
    found = taints(registry, lineage)
    if found:
        digest, first = next(iter(found.items()))
        when = time.strftime("%Y-%m-%d", time.gmtime(first.time))
        others = f", and from {len(found) - 1} more" if len(found) > 1 else ""
        detail = f'{way_up(registry, lineage, digest)} was retracted on {when}: "{first.reason}"{others}'
        return Check("retraction", "fail", detail, "run again without it")
    return Check("retraction", "pass", "nothing that it was made from was retracted")


def check_verifiers(one: Finalist) -> Check:
    """Every judge behind the scores was attacked before it judged, and fell for no more than the run allows.

    Nor does it surely fall for more where attacks stand around the wrong answers of the pick itself.
    """
    limit, usual = one.run_file.evaluate.max_attack_success, EvaluateSection().max_attack_success
    evaluated = [ref.path for task, ref in one.artifacts.items() if task.startswith(EVALUATED)]
    audits = {audit.verifier: audit for folder in evaluated for audit in read_audits(folder)}
    if missing := [name for name in judge_names(one.run_file) if name not in audits]:
        detail = f"{_some(missing)} judged without an audit, as versions before this one let it"
        return Check("verifiers", "fail", detail, "run the run file again")
    for audit in audits.values():
        if why := objection(audit, limit):
            return Check("verifiers", "fail", f"{audit.verifier} {why}", "take another judge, and run again")
    again = read_audits(one.artifacts["locked-test"].path, OWN_ATTACKS)
    own = [f"{audit.verifier} {attack_success(audit.attacks)}" for audit in again]
    beside = f"around wrong answers of {one.selection.pick} itself: {', '.join(own)}"
    if any(surely_fooled(audit, limit) for audit in again):
        return Check("verifiers", "fail", f"attacks {beside} scored above 0", "take another judge, and run again")
    each = [f"{name} {attack_success(audit.attacks)}" for name, audit in audits.items()]
    detail = f"attacks that scored above 0: {', '.join(each)}{f'; {beside}' if own else ''}"
    if raised := [name for name, audit in audits.items() if objection(audit, usual)]:
        fix = f"evaluate.max_attack_success was raised to {_percent(limit)} for {_some(raised)}; scores may flatter"
        return Check("verifiers", "warn", detail, fix)
    return Check("verifiers", "pass", detail)


def check_audit(one: Finalist) -> Check:
    """Every vote behind the scores is there, names its judge and its text, and a sample of them repeats."""
    examinations = [ref.path for task, ref in one.artifacts.items() if task.startswith((EVALUATED, "locked-test"))]
    audit = audit_votes(one.run_file, one.artifacts["qa-build"].path, examinations)
    if audit.faults:
        return Check(
            "audit", "fail", _some(list(audit.faults)), "look at votes.parquet there, and run the run file again"
        )
    found = audit.agreement
    exact, failed = found.exact.value, found.failed_rate.value
    if not audit.votes or failed is None:
        return Check("audit", "fail", "no votes are archived for this run", "run the run file again")
    detail = (
        f"{audit.votes} votes, {audit.sampled} of them cast again; the first two judges agree on "
        f"{_percent(exact)}, the third decided {_percent(found.third_rate.value)}, {_percent(failed)} of "
        "the votes are unreadable"
    )
    if failed > MOST_FAILED:
        return Check(
            "audit", "fail", detail, "see the errors in votes.parquet, mend the judges and run the run file again"
        )
    if exact is None or exact < LEAST_AGREEMENT:
        return Check("audit", "warn", detail, "look at the judges: they measure different things")
    return Check("audit", "pass", detail)


def check_files(one: Finalist, version: str, versions: ModelVersions) -> Check:
    """The run's files are as they were written, and MLflow holds the same bytes of the model."""
    for artifact in one.artifacts.values():
        artifact.open(verify=True)
    if weights_digest(one.model) != one.selection.candidate_digest:
        return Check("files", "fail", f"{one.model}: not the weights that were selected", "run the run file again")
    wanted, stored = model_files(one), versions.files(version)
    wrong = sorted(path for path in wanted.keys() | stored.keys() if wanted.get(path) != stored.get(path))
    if wrong:
        detail = f"version {version} in MLflow differs from the run in {_some(wrong)}"
        return Check("files", "fail", detail, f"delete version {version}, then run the run file again")
    return Check("files", "pass", f"{len(wanted)} files, each with its digest, here and in MLflow")


def check_signature(one: Finalist, registry: Registry) -> Check:
    """The required key has signed the model, its scores on the test and its files."""
    from iar.services.signatures import run_findings

    key = Path(one.run_file.register.require_signature)
    if found := run_findings(one, registry, key):
        return Check("signature", "fail", found[0], "sign it with iar sign RUN.yaml --key KEY.pem")
    return Check("signature", "pass", f"model, test scores and files are signed by the key {key}")


def check_storage(storage: str, serve: bool) -> Iterator[Check]:
    """Yield the finding where a cluster is to serve the model and cannot read its files."""
    if serve and not storage:
        detail = "no cluster can read the version's files"
        yield Check("storage", "fail", detail, "give MLflow a bucket (s3://) for artifacts, or run it on Kubeflow")


def model_files(one: Finalist) -> dict[str, str]:
    """Return relative path -> SHA-256 of the picked model's files, as the run's manifest has them."""
    folder = f"{MODEL}/"
    files = one.artifacts["register"].open().files
    return {file.path.removeprefix(folder): file.sha256 for file in files if file.path.startswith(folder)}


def _items(checks: list[EvalCheck]) -> int:
    return max((check.items for check in checks if check.dataset == "documents"), default=0)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
