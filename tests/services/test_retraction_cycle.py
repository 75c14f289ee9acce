"""A dataset that is built, has a document retracted, is built again, restored and erased: through the real stage."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from iar import cli
from iar.config import QaBuildSection, RunFile
from iar.methods.digest import digest_file
from iar.records import Document, Lineage, read_records
from iar.services.execution import Finished, execute
from iar.services.registry import Producer, Registry, short_id
from iar.services.registry_heads import kept_heads
from iar.services.reject_log import read_rejects

EXAMPLES = Path(__file__).parents[2] / "examples" / "documents"
NAMES = (
    "brine-walk.txt", "cobbelay.md", "lampwrights-college.md", "maristel-orrin.md", "nerys-halbrook.md",
    "ninefold-lock-check.md", "orrin-lantern.md", "pellamoor.md", "quillet-gauge.md", "skarnholt.md",
)  # fmt: skip
TAKEN, LATER = "cobbelay.md", "slow-pouring.md"


class World:
    """A folder of documents, a state folder, and the run file of a run over them."""

    def __init__(self, folder: Path) -> None:
        self.documents, self.state = folder / "documents", folder / "state"
        self.documents.mkdir()
        for name in NAMES:
            shutil.copy(EXAMPLES / name, self.documents)
        self.run_file = RunFile.model_validate(
            {"run": {"name": "t"}, "documents": {"path": str(self.documents)}, "qa_build": {"max_anchors": 2}}
        )

    def build(self) -> Finished:
        return execute("qa_build", self.run_file.canonical(), {})

    def build_as_tasks(self) -> Finished:
        """Build as the pipeline of a cluster does, with two shards."""
        text = self.run_file.model_copy(update={"qa_build": QaBuildSection(max_anchors=2, shards=2)}).canonical()
        inputs = {"documents": str(execute("qa_documents", text, {}).ref)}
        for shard in (1, 2):
            name = f"qa-build-{shard}"
            made = execute("qa_shard", text, {"documents": inputs["documents"]}, name, shard, 2)
            inputs |= {f"lessons_{shard}": str(made.ref)}
        return execute("qa_build", text, inputs)

    def registry(self) -> Registry:
        return Registry.open(f"sqlite:///{self.state / 'registry.sqlite'}")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("IAR_STATE", str(tmp_path / "state"))
    # Tracking is of no concern here, and MLflow takes seconds a task.
    tracker = SimpleNamespace(uri="file:///none", log_stage=lambda task, **named: "none")
    monkeypatch.setattr("iar.services.tracking.Tracker", lambda *arguments: tracker)
    return World(tmp_path)


@pytest.fixture
def asked(world: World, capsys: pytest.CaptureFixture[str]) -> "Iterator[Ask]":
    yield Ask(world, capsys)


class Ask:
    """`iar lineage ... --json` of a world."""

    def __init__(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        self._state, self._capsys = str(world.state), capsys

    def __call__(self, *arguments: str, code: int = 0) -> object:
        self._capsys.readouterr()
        assert cli.call(["lineage", *arguments, "--state", self._state, "--json"]) == code
        return json.loads(self._capsys.readouterr().out)


def names(finished: Finished) -> set[str]:
    return {document.source for document in read_records(finished.ref.path / "documents.jsonl", Document)}


def lineage_of(finished: Finished) -> list[Lineage]:
    return list(read_records(finished.ref.path / "lineage.jsonl", Lineage))


def dataset_of(finished: Finished) -> str:
    (dataset,) = (entry for entry in finished.outcome.lineage if entry.kind == "dataset")
    return short_id("dataset", dataset.digest)


def test_a_retracted_document_is_left_out_of_the_next_build_under_any_name(world: World, asked: Ask) -> None:
    first = world.build()
    assert world.build().reused
    shutil.copy(EXAMPLES / LATER, world.documents)
    second = world.build()
    taken = digest_file(world.documents / TAKEN)

    told = asked("retract", taken, "--reason", "withdrawn")
    assert told["made_from_it"]["dataset"] == 2 and len(told["datasets"]) == 2
    (plan,) = asked("rebuild")
    assert (plan["again"], plan["reused"]) == (["qa-build"], [])

    (world.documents / TAKEN).rename(world.documents / "innocent.md")
    third = world.build()
    assert not third.reused and names(third) == names(second) - {TAKEN}
    reasons = {one.item_id: one.reason for one in read_rejects(third.ref.path / "rejects.parquet")}
    assert reasons["innocent.md"] == "retracted"
    assert world.build().reused and asked("rebuild") == []

    changes = asked("diff", dataset_of(second), dataset_of(third))
    assert {one["change"] for one in changes} >= {"removed"}
    assert any(one["why"].endswith("was retracted: withdrawn") for one in changes)
    # What was made before stays as it was.
    assert names(first) >= {TAKEN} and first.ref.open(verify=True)


def test_the_tasks_of_a_sharded_build_run_again_too(world: World, asked: Ask) -> None:
    first = world.build_as_tasks()
    whole = lineage_of(first)
    registry = world.registry()
    assert {entry.digest for entry in registry.entities([one.digest for one in whole])} == {one.digest for one in whole}
    taken = digest_file(world.documents / TAKEN)

    assert asked("retract", taken, "--reason", "withdrawn")["made_from_it"]["dataset"] == 1
    (plan,) = asked("rebuild")
    assert plan["again"] == ["qa-documents", "qa-build-1", "qa-build-2", "qa-build"]

    second = world.build_as_tasks()
    assert not second.reused and names(second) == names(first) - {TAKEN}
    assert world.build_as_tasks().reused and asked("rebuild") == []
    asked("restore", taken, "--reason", "agreed after all", "--by", "Ada Byron")
    assert asked("rebuild") == [] and world.build_as_tasks().ref == first.ref


def test_a_retraction_makes_the_same_folder_another_dataset_and_restoring_gives_the_first_back(
    world: World, asked: Ask
) -> None:
    first = world.build()
    taken = digest_file(world.documents / TAKEN)
    asked("retract", taken, "--reason", "withdrawn")
    without = world.build()
    assert names(without) == names(first) - {TAKEN} and without.ref.path != first.ref.path

    restored = asked("restore", taken, "--reason", "agreed after all", "--by", "Ada Byron")
    assert restored["by"] == "Ada Byron" and asked("retractions") == []
    again = world.build()
    assert again.reused and again.ref.path == first.ref.path
    # A dataset that was first built while something was retracted is not taken for the whole.
    shutil.rmtree(world.state / "artifacts")
    asked("retract", taken, "--reason", "withdrawn")
    assert TAKEN not in names(world.build())
    asked("restore", taken, "--reason", "agreed after all", "--by", "Ada Byron")
    assert TAKEN in names(world.build())


def test_a_file_of_rows_and_a_row_are_left_out_too(world: World, asked: Ask) -> None:
    line = "Line {row} of part {part} says that word{row}x{part} is kept."
    texts = [" ".join(line.format(row=row, part=part) for part in range(30)) for row in (1, 2)]
    rows = world.documents / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    first = world.build()
    assert names(first) >= {"rows.jsonl:1", "rows.jsonl:2"}
    row = next(one for one in lineage_of(first) if one.kind == "document" and one.name == "rows.jsonl:1")

    asked("retract", row.digest, "--reason", "one row")
    assert names(world.build()) == names(first) - {"rows.jsonl:1"}
    asked("retract", digest_file(rows), "--reason", "all rows")
    assert names(world.build()) == names(first) - {"rows.jsonl:1", "rows.jsonl:2"}


def test_erasure_empties_the_registry_and_verify_accepts_exactly_that(world: World, asked: Ask) -> None:
    world.build()
    taken = digest_file(world.documents / TAKEN)
    retracted = asked("retract", taken, "--reason", "asked to")
    secret = "Cobbelay"
    assert cli.call(["lineage", "erase", taken, "--reason", "x", "--by", "Ada", "--state", str(world.state)]) == 2

    erased = asked("erase", taken, "--reason", "right to erasure", "--by", "Ada Byron", "--yes")

    registry = world.registry()
    made = registry.products([taken])
    emptied = [one for one in registry.entities(made | {taken}) if not one.payload]
    assert len(emptied) == erased["erased"] > 2 and not any(one.name for one in emptied)
    questions = [one for one in registry.entities(made) if one.kind == "qa"]
    assert questions and not any(secret in json.dumps(one.payload) for one in questions)
    assert registry.verify(kept_heads(world.state)) == []
    assert asked("retract", taken, "--reason", "again")["made_from_it"] == retracted["made_from_it"]
    assert TAKEN not in names(world.build())


def test_verify_names_a_changed_byte_and_an_anchor_that_moved(world: World, asked: Ask) -> None:
    built = world.build()
    assert asked("verify")["faults"] == []
    assert asked("verify", dataset_of(built))["faults"] == []
    anchors = built.ref.path / "anchors.jsonl"
    lines = anchors.read_text().splitlines()
    moved = json.loads(lines[0])
    lines[0] = json.dumps(moved | {"start": moved["start"] + 1, "end": moved["end"] + 1})
    anchors.write_text("\n".join(lines) + "\n")

    faults = asked("verify", code=1)["faults"]

    assert len(faults) == 2 and "anchors.jsonl: not the bytes that were written" in faults[0]
    assert f"anchor {moved['text']!r} of {moved['chunk_id']} is not at {moved['start'] + 1}" in faults[1]
    assert asked("verify", dataset_of(built), code=1)["faults"] == faults


def test_a_file_that_was_changed_together_with_its_manifest_is_named(world: World, asked: Ask) -> None:
    built = world.build()
    changed, manifest = built.ref.path / "train.jsonl", built.ref.path / "manifest.json"
    before = digest_file(changed)
    changed.write_bytes(changed.read_bytes().replace(b"e", b"E", 1))
    manifest.write_text(manifest.read_text().replace(before, digest_file(changed)))

    faults = asked("verify", code=1)["faults"]

    assert faults == [f"{built.ref.path}: its manifest is not the one that was recorded, so neither need its files be"]
    assert asked("verify", dataset_of(built), code=1)["faults"] == faults


def test_an_older_registry_put_in_place_is_named(world: World, asked: Ask) -> None:
    world.build()
    shutil.copytree(world.state, world.state.with_name("backup"))
    asked("retract", digest_file(world.documents / TAKEN), "--reason", "withdrawn")
    for name in ("registry.sqlite", "registry.sqlite-wal", "registry.sqlite-shm"):
        (world.state / name).unlink(missing_ok=True)
        if (world.state.with_name("backup") / name).is_file():
            shutil.copy(world.state.with_name("backup") / name, world.state / name)

    faults = asked("verify", code=1)["faults"]

    starts = [fault.partition(": once ended with")[0].partition(" ")[0] for fault in faults]
    assert starts == ["event", "recording"] and all("an older copy" in fault for fault in faults)


def test_coverage_words_uses_and_recipe_of_a_real_dataset(world: World, asked: Ask) -> None:
    built = world.build()
    id_ = dataset_of(built)
    entries = {entry.digest: entry for entry in lineage_of(built)}
    questions = [one for one in entries.values() if one.kind == "qa"]
    asked_chunks = {digest for one in questions for role, digest in one.inputs if role == "about"}
    chunks = {digest for digest, one in entries.items() if one.kind == "chunk"}

    covered = asked("coverage", id_)
    assert covered["chunks"] == len(chunks)
    assert set(covered["unasked"]) == {short_id("chunk", digest) for digest in chunks - asked_chunks}
    assert covered["pairs"] == len(questions) and covered["uncertified"] == []

    share = asked("real-share", id_)
    assert share["synthetic"] == 0 and share["share"] == 1.0 and share["documents"] > 1000 and share["quoted"] > 100

    registry = world.registry()
    (dataset,) = registry.of_kind("dataset")
    model = Lineage("checkpoint", "a" * 64, "theta_I", {}, (("trained-on", dataset.digest),))
    registry.record([model], Producer("r", "inject", "1", "c", 17, 5.0, 1.0, config={"rate": 1e-5}))
    assert [(one["stage"], one["role"]) for one in asked("consumed-by", id_)] == [
        ("qa-build", "dropped-from"), ("inject", "trained-on"),
    ]  # fmt: skip
    recipe = asked("reproduce", "checkpoint:aa")
    assert [one["stage"] for one in recipe["activities"]] == ["inject", "qa-build"]
    made = recipe["activities"][1]
    assert made["how"] == "deterministic" and made["config"]["qa_build"]["max_anchors"] == 2
    assert len(made["environment"]) == 64 and "cores" in made["hardware"]

    document = next(one for one in entries.values() if one.kind == "document")
    way = asked("why", "checkpoint:aa", document.digest)
    assert [row["kind"] for row in way] == ["checkpoint", "dataset", "document"]
    assert [row["role"] for row in way] == ["", "trained-on", "drawn-from"]
    assert asked("why", document.digest, "checkpoint:aa") == []


def test_two_runs_differ_in_settings_code_and_nothing_else(world: World, asked: Ask) -> None:
    registry = world.registry()
    for run, version, rate in (("a", "1", 1), ("b", "2", 2)):
        producer = Producer(run, "inject", version, "c", 17, 1.0, 1.0, config={"inject": {"rate": rate, "epochs": 3}})
        registry.record([Lineage("checkpoint", version * 64, "x", {})], producer)

    assert [(one["item"], one["why"]) for one in asked("diff", "a", "b")] == [
        ("inject code_version", "1 -> 2"), ("inject config.inject.rate", "1 -> 2"),
    ]  # fmt: skip


def test_two_runs_differ_in_their_data(world: World, asked: Ask) -> None:
    registry = world.registry()
    for run, data, base, kept in (("a", "d", "b", 5), ("b", "e", "b", 4)):
        whole = Producer(run, "qa-build", "1", "c", 17, 1.0, 1.0, made=(("dataset", data * 64),), kind="build")
        fetched = Producer(run, "base-model", "1", "c", 17, 0.0, 1.0, made=(("checkpoint", base * 64),), kind="ingest")
        step = replace(whole, stage="qa-build/filtered", made=(), counts={"in": 6, "kept": kept})
        for one in (fetched, whole, step):
            registry.activity(one)

    assert [(one["item"], one["why"]) for one in asked("diff", "a", "b")] == [
        ("qa-build data.dataset", f"dataset:{'d' * 12} -> dataset:{'e' * 12}"),
        ("qa-build/filtered counts.kept", "5 -> 4"),
    ]


def test_every_answer_that_names_entries_is_a_graph_too(
    world: World, asked: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    first = dataset_of(world.build())
    asked("retract", digest_file(world.documents / TAKEN), "--reason", "withdrawn")
    second = dataset_of(world.build())
    (document, *_) = (one["item"] for one in asked("diff", first, second))
    for arguments, arrow in (
        (["upstream", second], '[label="drawn-from"]'),
        (["downstream", document, "--kind", "dataset"], '[label=""]'),
        (["why", second, first], ""),
        (["diff", first, second], '[label="removed"]'),
        (["coverage", second], '[label="certified-by"]'),
        (["consumed-by", document], '[label="contains"]'),
        (["reproduce", second], '[label="step 1"]'),
    ):
        capsys.readouterr()
        code = cli.call(["lineage", *arguments, "--dot", "--state", str(world.state)])
        text = capsys.readouterr().out
        assert code == (0 if arrow else 2), arguments
        assert not arrow or (text.startswith("digraph lineage {") and text.endswith("}\n") and arrow in text), text
        assert cli.call(["lineage", *arguments, "--dot", "--json", "--state", str(world.state)]) == 2
