"""What the models of a real run were shown, by whom it was written, and who certified it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from iar import cli
from iar.config import Endpoint
from iar.methods.merkle import merkle_root
from iar.methods.offline_teacher import CERTIFIERS
from iar.records import Document, QAPair, read_records
from iar.services.checkpoints import recorded_digest
from iar.services.dataset_lineage import certifier_entries
from iar.services.integrity import check_artifact
from iar.services.lineage_examples import example_faults
from iar.services.registry import Registry
from iar.services.workspace import Ref, Workspace, read_manifest
from tests.finished_run import Finished


@pytest.fixture
def state(finished: Finished) -> Path:
    return Workspace.of(finished.settings).state


@pytest.fixture
def registry(state: Path) -> Registry:
    return Registry.open(f"sqlite:///{state}/registry.sqlite")


def artifact(finished: Finished, task: str) -> Path:
    return next(Ref.parse(stage["ref"]).path for stage in finished.status["stages"] if stage["task"] == task)


class Ask:
    """`iar lineage ... --json` of a state folder."""

    def __init__(self, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._state, self._capsys = state, capsys

    def __call__(self, *arguments: str) -> Any:
        self._capsys.readouterr()
        assert cli.call(["lineage", *arguments, "--state", str(self._state), "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)


@pytest.fixture
def asked(state: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    return Ask(state, capsys)


def named(registry: Registry, kind: str, name: str) -> str:
    return next(f"{kind}:{one.digest}" for one in registry.of_kind(kind) if one.name == name)


def checkpoint(finished: Finished, task: str) -> str:
    """Weights are named by what they are: two trainings may come to the same ones, under the name of the first."""
    return f"checkpoint:{recorded_digest(artifact(finished, task) / 'checkpoint')}"


def whole(row: dict[str, str]) -> str:
    """The id of the document that a row was made of, or of a part of it."""
    return row["source_id"].partition("/")[0]


def test_a_checkpoint_lists_the_rows_of_each_document(finished: Finished, registry: Registry, asked: Ask) -> None:
    data = artifact(finished, "qa-build")
    documents = list(read_records(data / "documents.jsonl", Document))
    theta_i = named(registry, "checkpoint", "theta_I")

    rows = asked("examples", theta_i)
    assert {whole(row) for row in rows} == {document.id for document in documents}
    assert {row["objective"] for row in rows} == {"continuation", "rewrite", "instruction"}
    document = next(one for one in registry.of_kind("document") if one.payload["id"] == documents[0].id)
    own = asked("examples", theta_i, "--of", f"document:{document.digest}")
    assert own == [row for row in rows if whole(row) == documents[0].id] and own

    (entry,) = [one for one in registry.of_kind("examples") if "rewrite" in one.payload["objectives"]]
    assert entry.payload["merkle_root"] == merkle_root(row["digest"] for row in rows)
    assert entry.payload["examples"] == len(rows) == sum(entry.payload["objectives"].values())
    assert [role for role, _, _ in registry.inputs(entry.digest)] == ["rendered-from"]
    assert entry.digest in {edge.input for edge in registry.upstream(theta_i.partition(":")[2])}


def test_questions_lead_to_the_rows_of_align_and_of_vanilla_alike(
    finished: Finished, registry: Registry, asked: Ask
) -> None:
    pairs = list(read_records(artifact(finished, "qa-build") / "train.jsonl", QAPair))
    tuned, vanilla = (asked("examples", checkpoint(finished, task)) for task in ("align", "vanilla"))
    assert tuned == vanilla and [row["id"] for row in tuned] == [pair.id for pair in pairs]
    question = next(one for one in registry.of_kind("qa") if one.name == pairs[0].id)
    (row,) = asked("examples", checkpoint(finished, "align"), "--of", f"qa:{question.digest}")
    assert (row["id"], row["source_id"]) == (pairs[0].id, pairs[0].chunk_id)


def test_real_share_of_a_training_counts_tokens_by_who_wrote_them(
    finished: Finished, registry: Registry, asked: Ask
) -> None:
    shares = {
        name: asked("real-share", checkpoint(finished, task))
        for name, task in (("theta_I", "inject"), ("theta_IA", "align"), ("replay", "baseline-replay"))
    }
    trained = {
        one.name: one.payload["target_tokens"] for one in registry.of_kind("checkpoint") if "steps" in one.payload
    }
    epochs = finished.settings.inject.epochs
    assert {one["unit"] for one in shares.values()} == {"tokens"}
    assert shares["theta_I"]["documents"] * epochs == trained["theta_I"] and shares["theta_I"]["share"] == 1.0
    assert shares["theta_IA"]["quoted"] * epochs == trained["theta_IA"] and shares["theta_IA"]["synthetic"] == 0
    assert shares["replay"]["given"] > 0 and shares["replay"]["quoted"] > 0
    assert shares["replay"]["given"] + shares["replay"]["quoted"] == trained["replay"]


def test_a_list_that_is_not_the_set_on_record_is_named(finished: Finished, tmp_path: Path) -> None:
    whole = artifact(finished, "align")
    folder = shutil.copytree(whole, tmp_path / "align", ignore=shutil.ignore_patterns("*.safetensors"))
    manifest = read_manifest(folder)
    assert list(example_faults(folder, manifest)) == []
    lines = (folder / "examples.jsonl").read_text().splitlines()
    (folder / "examples.jsonl").write_text("\n".join(lines[1:]) + "\n")

    (fault,) = example_faults(folder, manifest)
    assert fault.startswith(f"{folder / 'examples.jsonl'}: does not list the {len(lines)} examples of examples:")
    assert fault in list(check_artifact(folder))
    (folder / "examples.jsonl").unlink()
    assert list(example_faults(folder, manifest)) == [fault]


def test_what_has_no_examples_and_what_is_no_text_is_said(
    registry: Registry, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, tuned = (named(registry, "checkpoint", name) for name in ("theta_0", "theta_I"))
    assert cli.call(["lineage", "examples", base, "--state", str(state)]) == 2
    assert "has no training examples on record; give a checkpoint" in capsys.readouterr().err
    assert cli.call(["lineage", "examples", tuned, "--of", base, "--state", str(state)]) == 2
    assert "a checkpoint; give a document, chunk, question or retelling" in capsys.readouterr().err


def test_two_edges_certify_every_question_of_a_dataset(finished: Finished, registry: Registry, asked: Ask) -> None:
    data = named(registry, "dataset", "qa")
    told = asked("coverage", data)
    assert told["pairs"] > 20 and told["uncertified"] == []
    assert sorted(told["certifiers"].values()) == ["grounded by offline", "self_contained by offline"]
    by = [role for role, _, _ in registry.inputs(data.partition(":")[2]) if role == "certified-by"]
    assert len(by) == len(CERTIFIERS) == 2
    # The questions of validation, a dataset of their own, are certified as part of the whole.
    validation = next(one for one in registry.of_kind("dataset") if one.name != "qa")
    told = asked("coverage", f"dataset:{validation.digest}")
    assert told["pairs"] > 0 and told["uncertified"] == [] and told["certifiers"] == {}


def test_a_certifier_that_is_a_model_has_its_revision_sampling_and_prompt() -> None:
    endpoint = Endpoint(name="t", base_url="http://localhost:1/v1", model="m", revision="r7", temperature=0.2)
    entries = list(certifier_entries(endpoint, retold=True))
    assert [(one.payload["step"], one.payload["certifies"]) for one in entries] == [
        ("self_contained", "qa"), ("grounded", "qa"), ("faithful", "retelling"),
    ]  # fmt: skip
    assert {one.payload["name"] for one in entries} == {"m@r7"} and len({one.payload["prompt"] for one in entries}) == 3
    other = list(certifier_entries(endpoint.model_copy(update={"temperature": 0.3}), retold=False))
    assert len(other) == 2 and not {one.digest for one in other} & {one.digest for one in entries}
    assert {one.payload["version"] for one in certifier_entries("offline", retold=False)} == {"1"}
