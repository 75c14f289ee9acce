"""The QA build in shards: the same bytes for any number of them, here and as tasks of their own, and after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from iar.config import RunFile
from iar.errors import UserError
from iar.services.workspace import Context
from iar.stages import qa_build, qa_documents, qa_shard
from tests.services.chat_server import Answer, ChatServer, serve
from tests.services.scripted_teacher import good_model

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "documents"
LLM = {
    "chunk_characters": 100, "validation_share": 0.2, "test_share": 0.5, "max_anchors": 3, "augment": ["relations"],
    "relations_per_document": 2,
}  # fmt: skip


def settings(documents: Path, **qa: Any) -> RunFile:
    return RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": str(documents)}, "qa_build": qa})


def build(run_file: RunFile, out: Path, state: Path) -> dict[str, bytes]:
    out.mkdir(parents=True)
    qa_build.run(run_file, {}, out, Context.for_tests(state))
    return files(out)


def files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def as_tasks(run_file: RunFile, out: Path, state: Path) -> dict[str, bytes]:
    """Build as the pipeline of a cluster does: documents, shards, and what gathers them."""
    shards = run_file.qa_build.shards
    places = {name: out / name for name in ("documents", *(f"lessons_{n}" for n in range(1, shards + 1)), "dataset")}
    for place in places.values():
        place.mkdir(parents=True)
    qa_documents.run(run_file, {}, places["documents"], Context.for_tests(state))
    for shard in range(1, shards + 1):
        context = Context.for_tests(state, shard=shard, shards=shards)
        qa_shard.run(run_file, {"documents": places["documents"]}, places[f"lessons_{shard}"], context)
    dataset = places.pop("dataset")
    qa_build.run(run_file, places, dataset, Context.for_tests(state))
    return files(dataset)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    return build(settings(EXAMPLES), folder / "out", folder)


def test_a_dataset_is_the_same_for_any_number_of_shards(whole: dict[str, bytes], tmp_path: Path) -> None:
    assert {"documents.jsonl", "chunks.jsonl", "anchors.jsonl", "rewrite_inputs.jsonl", "rejects.parquet"} < set(whole)
    assert {"train.jsonl", "validation.jsonl", "test.jsonl", "dataset.json", "funnel.json", "lineage.jsonl"} < set(
        whole
    )
    for shards in (2, 5):
        assert build(settings(EXAMPLES, shards=shards), tmp_path / str(shards), tmp_path) == whole


@pytest.mark.parametrize("shards", [1, 3, 30])
def test_tasks_on_a_cluster_make_the_same_dataset_even_with_nothing_to_do(
    whole: dict[str, bytes], shards: int, tmp_path: Path
) -> None:
    assert as_tasks(settings(EXAMPLES, shards=shards), tmp_path, tmp_path) == whole


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number, word in enumerate(["lantern", "quarrying", "breakwater", "saltworks", "foundry", "ropewalk"]):
        lines = [
            f"Old Greywether {word}{letter} stood by the quay in 1{number}1{place}."
            for place, letter in enumerate("abcd")
        ]
        (folder / f"{word}.md").write_text(f"# The {word}\n\n" + "\n\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serve(good_model) as running:
        yield running


def requests(server: ChatServer) -> list[str]:
    return [json.dumps(body, sort_keys=True) for body in server.calls]


def with_teacher(server: ChatServer, documents: Path, shards: int, **teacher: Any) -> RunFile:
    return settings(documents, teacher=server.endpoint(**teacher).model_dump(mode="json"), shards=shards, **LLM)


@pytest.mark.slow
def test_a_language_model_is_asked_the_same_whatever_the_number_of_shards(
    server: ChatServer, documents: Path, tmp_path: Path
) -> None:
    one = build(with_teacher(server, documents, 1), tmp_path / "one", tmp_path / "state-1")
    asked = sorted(requests(server))
    assert {"retellings.jsonl", "test-cross-document.jsonl"} < set(one)
    for shards in (2, 3):
        server.calls.clear()
        state = tmp_path / f"state-{shards}"
        assert build(with_teacher(server, documents, shards), tmp_path / str(shards), state) == one
        assert sorted(requests(server)) == asked
        assert as_tasks(with_teacher(server, documents, shards), tmp_path / f"tasks-{shards}", state) == one
        assert len(server.calls) == len(asked)  # all of it had been bought


def test_a_budget_holds_over_all_shards_together(server: ChatServer, documents: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with pytest.raises(UserError, match="budget_calls 20 is reached: model 'm-1' has cost 20 calls"):
        build(with_teacher(server, documents, 3, budget_calls=20), tmp_path / "poor", state)
    assert len(server.calls) == 20
    rich = build(with_teacher(server, documents, 3, budget_calls=10_000), tmp_path / "rich", state)
    bought = len(server.calls)
    assert len(set(requests(server))) == bought
    assert rich == build(with_teacher(server, documents, 1), tmp_path / "one", tmp_path / "other")


KILLED = """
import sys
from pathlib import Path
from iar.config import RunFile
from iar.errors import TemporaryError
from iar.services.workspace import Context
from iar.stages import qa_build
if __name__ == "__main__":
    run_file = RunFile.model_validate_json(sys.argv[1])
    out, state = Path(sys.argv[2]), Path(sys.argv[3])
    out.mkdir(parents=True, exist_ok=True)
    try:
        qa_build.run(run_file, {}, out, Context.for_tests(state))
    except TemporaryError as error:
        sys.exit(str(error))
"""


def started(run_file: RunFile, out: Path, state: Path) -> "subprocess.Popen[str]":
    script = out.with_suffix(".py")
    script.write_text(KILLED, encoding="utf-8")
    command = [sys.executable, str(script), run_file.model_dump_json(), str(out), str(state)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def workers_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The processes of the shards: those that multiprocessing started, but for its own tracker."""
    children = psutil.Process(process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.parametrize("victim", ["shard", pytest.param("all", marks=pytest.mark.slow)])
def test_a_kill_of_a_shard_or_of_all_costs_no_reply_and_the_next_try_ends_with_the_same_bytes(
    documents: Path, tmp_path: Path, victim: str
) -> None:
    slow = True

    def script(body: dict[str, Any], number: int) -> Answer:
        answer = good_model(body, number)
        return Answer(answer.text, delay_seconds=30) if slow and number > 12 else answer

    with serve(script) as server:
        run_file, out, state = with_teacher(server, documents, 2), tmp_path / "out", tmp_path / "state"
        process = started(run_file, out, state)
        wait_until(lambda: len(server.calls) > 12)
        time.sleep(0.5)  # the first replies are on disk
        workers = workers_of(process)
        if victim == "shard":
            workers[0].kill()
            said = process.communicate(timeout=100)[1]
            assert "the process of shard" in said and "was killed, perhaps for its memory: run again" in said
        else:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        assert psutil.wait_procs(workers, timeout=20)[1] == []
        slow = False
        kept = set(requests(server)[:12])
        server.calls.clear()
        assert started(run_file, out, state).wait(timeout=200) == 0
        assert not kept & set(requests(server))
        assert files(out) == build(with_teacher(server, documents, 1), tmp_path / "one", tmp_path / "other")


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + 100
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert holds()
