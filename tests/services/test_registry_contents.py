"""What the registry of a finished run holds: every kind of record, every kind of activity, every field of one."""

import json
import re
from pathlib import Path

import pytest

from iar import cli
from iar.methods.digest import digest_json
from iar.records import Lineage
from iar.services.activity import KINDS, STEP_AGENTS
from iar.services.checkpoints import recorded_digest
from iar.services.lineage_activities import activities
from iar.services.registry import Registry
from iar.services.registry_records import FINISHED, Producer
from iar.services.stage_keys import STAGES
from iar.services.workspace import Ref, Workspace
from tests.finished_run import Finished

SHA256 = re.compile("[0-9a-f]{64}")
# A promotion is no part of a run: test_promotion has it.
RECORDS = {
    "source", "document", "chunk", "anchor", "qa", "examples", "dataset", "rejects", "eval-set", "checkpoint",
    "candidate", "scorer", "verifier", "votes", "scores", "decision", "report", "agent",
}  # fmt: skip
# Promoting and retracting are no part of a run either: test_promotion and test_retraction have them.
ACTIVITIES = {
    "ingest", "filter", "generate", "certify", "dedup", "decontaminate", "split", "train", "merge", "evaluate",
    "select", "read-test", "build", "register",
}  # fmt: skip


@pytest.fixture
def state(finished: Finished) -> Path:
    return Workspace.of(finished.settings).state


@pytest.fixture
def registry(state: Path) -> Registry:
    return Registry.open(f"sqlite:///{state}/registry.sqlite")


@pytest.fixture
def done(finished: Finished, registry: Registry) -> list[Producer]:
    return activities(registry, finished.settings.run_id)


def of_role(registry: Registry, entry: Lineage, role: str) -> list[Lineage]:
    return [registry.find(digest) for own, digest in registry.find(entry.digest).inputs if own == role]


def test_every_kind_of_record_is_there(registry: Registry) -> None:
    assert set(registry.kinds()) >= RECORDS


def test_every_kind_of_activity_is_there(done: list[Producer]) -> None:
    assert {one.kind for one in done} >= ACTIVITIES
    assert KINDS.keys() == STAGES.keys()


def test_every_activity_says_by_what_code_with_what_settings_where_and_when(done: list[Producer]) -> None:
    for one in done:
        assert SHA256.fullmatch(one.code_version) and SHA256.fullmatch(one.environment), one.stage
        assert one.config and one.config_digest == digest_json(dict(one.config)), one.stage
        assert "cores" in one.hardware and one.started > 0 and one.seconds >= 0, one.stage
        assert re.fullmatch("[0-9a-f]{40}|", one.commit) and isinstance(one.dirty, bool), one.stage
        assert one.seed == 17 and one.status in (FINISHED, "killed"), one.stage
    assert [one.kind for one in done if one.status == "killed"] == ["train"]
    assert all(one.cost["tokens"] > 0 for one in done if one.stage in ("inject", "align", "vanilla") and one.made)


def test_every_activity_says_what_it_used_and_made_in_what_role(done: list[Producer], registry: Registry) -> None:
    known = registry.labels(digest for one in done for _, digest in (*one.used, *one.made))
    for one in done:
        assert all(role and digest in known for role, digest in (*one.used, *one.made)), one.stage
        steps = "/" in one.stage
        assert one.used or steps or one.kind in ("ingest", "build"), one.stage
        assert one.made or steps or one.kind in ("read-test", "generate") or one.status == "killed", one.stage
    (inject,) = (one for one in done if one.stage == "inject" and one.made)
    assert {role: known[digest][0] for role, digest in inject.used} == {"base": "checkpoint", "data": "dataset"}
    assert {role for role, _ in inject.made} == {"examples", "checkpoint"}
    (read,) = (one for one in done if one.kind == "read-test")
    assert [role for role, _ in read.used] == ["model", "decision", "validated-on"]


def test_the_steps_of_the_qa_build_account_for_every_item(done: list[Producer], registry: Registry) -> None:
    steps = [one for one in done if one.stage.startswith("qa-build/")]
    assert [one.stage.partition("/")[2] for one in steps][:4] == ["documents", "filtered", "distinct", "uncontaminated"]
    (rejects,) = registry.of_kind("rejects")
    for one in steps:
        dropped = {name.removeprefix("dropped: "): n for name, n in one.counts.items() if name.startswith("dropped: ")}
        assert one.counts["in"] == one.counts["kept"] + sum(dropped.values())
        assert (("rejects", rejects.digest) in one.made) == bool(dropped)
        if agents := STEP_AGENTS.get(one.kind):
            assert {role for role, _ in one.used} == set(agents)
    (split,) = (one for one in steps if one.kind == "split")
    assert [registry.find(digest).kind for _, digest in split.made] == ["dataset"]


def test_scores_name_the_set_they_were_measured_on_and_every_scorer(finished: Finished, registry: Registry) -> None:
    for scores in registry.of_kind("scores"):
        sets = {one.payload["suite"]: one for one in of_role(registry, scores, "measured-on")}
        assert sets.keys() == {"domain", "ifeval", "mmlu", "msbench"}
        assert all(one.payload["items"] == 3 for name, one in sets.items() if name != "domain")
        (data,) = of_role(registry, sets["domain"], "asked-from")
        assert data.name == "qa" and sets["domain"].payload["split"] == scores.payload["split"]
        assert {one.payload["suite"] for one in of_role(registry, scores, "scored-by")} == {"ifeval", "mmlu"}
        assert of_role(registry, scores, "judged-by")
    (data,) = (one for one in registry.of_kind("dataset") if one.name == "qa")
    filters = of_role(registry, data, "filtered-by")
    assert filters and all(one.payload["threshold"] and SHA256.fullmatch(one.payload["version"]) for one in filters)


def test_weights_name_their_parents_their_base_and_all_files_of_their_folder(
    finished: Finished, registry: Registry
) -> None:
    (base,) = (one for one in registry.of_kind("checkpoint") if one.name == "theta_0")
    weights = [*registry.of_kind("checkpoint"), *registry.of_kind("candidate")]
    for one in weights:
        assert (one.payload.get("base", base.digest) == base.digest) and ("base" in one.payload) == (one != base)
        assert SHA256.fullmatch(one.payload["files"]) or one.name == "vanilla in fp32", one.name
        assert one == base or registry.find(one.digest).inputs, one.name

    ref = Ref.parse(next(stage["ref"] for stage in finished.status["stages"] if stage["task"] == "inject"))
    inside = {file.path: file.sha256 for file in ref.open().files if file.path.startswith("checkpoint/")}
    listed = digest_json({path.removeprefix("checkpoint/"): sha for path, sha in inside.items()})
    digest = recorded_digest(ref.path / "checkpoint")
    assert len(inside) > 3 and registry.find(digest).payload["files"] == listed


def test_an_evaluation_set_says_nothing_of_its_questions(finished: Finished, registry: Registry) -> None:
    for one in registry.of_kind("eval-set"):
        assert one.payload.keys() <= {"suite", "items", "private", "split", "questions"}


def test_the_command_tells_an_activity_whole(
    finished: Finished, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["lineage", "activities", finished.settings.run_id, "--kind", "train", "--state", str(state), "--json"]
    assert cli.call(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"inject", "align", "vanilla"} <= {one["stage"] for one in told}
    for one in told:
        assert one["ended"] == one["started"] + one["seconds"] and one["kind"] == "train"
        assert one.keys() == {"id", "ended", *Producer.__dataclass_fields__}


def test_a_model_goes_back_to_every_number_it_was_picked_by(finished: Finished, registry: Registry) -> None:
    """So a judge that is retracted takes the pick with it."""
    (decision,) = registry.of_kind("decision")
    weighed = of_role(registry, decision, "weighed")
    assert {"vanilla on validation", f"{finished.pick} on validation"} <= {one.name for one in weighed}
    (model,) = (one for one in registry.of_kind("checkpoint") if "weights" in one.payload)
    for verifier in registry.of_kind("verifier"):
        assert model.digest in registry.products([verifier.digest])
