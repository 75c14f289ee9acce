"""The oracle on a real training: every epoch answers, a judge scores, and the weights are the same bits."""

import json
import multiprocessing
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.digest import digest_file
from iar.records import OracleWatch, QAPair, Reply, from_json, write_json, write_records
from iar.services import oracle as oracle_service
from iar.services.checkpoints import weights_digest
from iar.services.progress import Progress
from iar.services.replies import complete_replies
from iar.services.workspace import Context, Manifest, stored_files
from iar.stages import align, inject
from tests.examination import examination_run_file
from tests.services.chat_server import Answer, ChatServer, serve

EPOCHS, PROMPTS = 3, 6
TRAINING = {
    "epochs": EPOCHS, "learning_rate": 3e-3, "batch_size": 4, "compute_dtype": "float32", "checkpoint_seconds": 1e-9,
}  # fmt: skip
NAMES = ("Tora Lind", "Ada Holm", "Per Dahl", "Ida Berg", "Nils Voss", "Eva Rask", "Jon Falk", "Liv Moe")


class Phase(Progress):
    """What the stage is at: the server reads it to say what a judge would find."""

    def __init__(self) -> None:
        super().__init__(None, "align")
        self.note = ""

    def update(self, done: float, total: float, note: str = "") -> None:
        self.note = note


@pytest.fixture
def inputs(tiny_model_folder: Path, tmp_path: Path) -> dict[str, Path]:
    data = tmp_path / "data"
    data.mkdir()
    pairs = [
        QAPair(
            f"q{n}", "d", "c", "train", "fact", f"Who built mill {n}?", f"{name} built it.", name, (), name, "offline"
        )
        for n, name in enumerate(NAMES)
    ]
    write_records(data / "train.jsonl", pairs)
    write_json(data / "dataset.json", {"digest": "d" * 64})
    return {"data": data, "base": tiny_model_folder}


def run_file(folder: Path, judge: Any = None, **evaluate: Any) -> RunFile:
    """A run file whose training is watched by `judge`; attacks are let pass unless said otherwise."""
    made = examination_run_file(folder / "suites").model_dump(mode="json") | {"align": TRAINING, "inject": TRAINING}
    made["evaluate"] |= {"max_attack_success": 1.0, "domain_max_tokens": 12} | evaluate
    asked = {"oracle": {"judge": judge, "prompts": PROMPTS}} if judge else {}
    return RunFile.model_validate(made | asked)


def phased(folder: Path) -> tuple[Context, Phase]:
    phase = Phase()
    return replace(Context.for_tests(folder / "state"), progress=phase), phase


def watch_of(out: Path) -> OracleWatch:
    return from_json(OracleWatch, json.loads((out / "oracle" / "oracle.json").read_text()))


def content(out: Path) -> str:
    """What the next stages' keys are made of."""
    return Manifest("t", "align", "k", {}, "", 0.0, 0.0, stored_files(out), None).content  # type: ignore[arg-type]


def trained(settings: RunFile, inputs: dict[str, Path], out: Path, context: Context) -> Any:
    out.mkdir(parents=True)
    return align.run(settings, inputs, out, context)


@pytest.mark.parametrize("start", [False, True], ids=["vanilla", "align"])
def test_every_epoch_is_scored_and_the_weights_are_the_same_bits(
    inputs: dict[str, Path], tmp_path: Path, start: bool
) -> None:
    if start:
        (tmp_path / "injected").mkdir()
        (tmp_path / "injected" / "checkpoint").symlink_to(inputs["base"])
        inputs |= {"start": tmp_path / "injected"}
    context, _ = phased(tmp_path)
    trained(run_file(tmp_path), inputs, tmp_path / "plain", context)
    made = trained(run_file(tmp_path, "rule:token-f1"), inputs, tmp_path / "watched", context)

    for name in ("model.safetensors", "checkpoint.json"):
        digests = {digest_file(tmp_path / out / "checkpoint" / name) for out in ("plain", "watched")}
        assert len(digests) == 1
    assert content(tmp_path / "plain") == content(tmp_path / "watched")
    assert not (tmp_path / "watched" / "epochs").exists()

    watch = watch_of(tmp_path / "watched")
    assert watch.model == ("theta_IA" if start else "vanilla") and watch.judge == "rule:token-f1" and not watch.lost
    assert [one.epoch for one in watch.epochs] == [1, 2, 3] and [one.step for one in watch.epochs] == [2, 4, 6]
    assert len({one.checkpoint_digest for one in watch.epochs}) == EPOCHS
    assert watch.epochs[-1].checkpoint_digest == weights_digest(tmp_path / "watched" / "checkpoint")
    assert all(one.oracle.count == one.accuracy.count == PROMPTS for one in watch.epochs)
    assert watch.epochs[0].loss > watch.epochs[-1].loss
    assert made.metrics["oracle/epoch-2"] == watch.epochs[1].oracle.points and made.metrics["oracle_diverged"] == 0
    assert f"| 3 | {watch.epochs[2].loss:.3f} |" in made.markdown
    examples, checkpoint, verifier, scores = made.lineage
    kinds = (examples.kind, checkpoint.kind, verifier.kind, scores.kind)
    assert kinds == ("examples", "checkpoint", "verifier", "scores")
    assert scores.inputs == (("evaluated", checkpoint.digest), ("judged-by", verifier.digest))


@pytest.fixture
def judge() -> Iterator[tuple[ChatServer, Phase]]:
    """A server that finds every reply right until the last epoch, and the progress that tells it where that is."""
    phase = Phase()

    def script(body: dict[str, Any], number: int) -> Answer:
        right = int(phase.note != f"oracle, epoch {EPOCHS}")
        return Answer(json.dumps({"reason": "", "score": right}))

    with serve(script) as server:
        yield server, phase


def endpoint(server: ChatServer, **settings: Any) -> dict[str, Any]:
    return server.endpoint(**settings).model_dump(mode="json")


def test_a_score_that_falls_while_the_loss_falls_is_a_warning(
    inputs: dict[str, Path], tmp_path: Path, judge: tuple[ChatServer, Phase]
) -> None:
    server, phase = judge
    context = replace(Context.for_tests(tmp_path / "state"), progress=phase)
    made = trained(run_file(tmp_path, endpoint(server)), inputs, tmp_path / "out", context)

    watch = watch_of(tmp_path / "out")
    assert watch.divergences[0].since == 1 and watch.divergences[0].loss < 0
    assert "since epoch 1 the score by test-llm changed by -" in watch.warning
    assert "**The oracle diverges**" in made.markdown and made.metrics["oracle_diverged"] == 1


def test_a_judge_that_attacks_fool_is_refused_before_anything_is_trained(
    inputs: dict[str, Path], tmp_path: Path, judge: tuple[ChatServer, Phase]
) -> None:
    server, phase = judge
    context = replace(Context.for_tests(tmp_path / "state"), progress=phase)
    settings = run_file(tmp_path, endpoint(server), max_attack_success=0.02)
    with pytest.raises(UserError, match=r"oracle\.judge: test-llm .*take another judge"):
        trained(settings, inputs, tmp_path / "out", context)
    assert not (tmp_path / "out" / "checkpoint").exists() and not (tmp_path / "out" / "steps.jsonl").exists()


def test_a_judge_of_the_models_own_family_is_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    family = {"name": "kin", "base_url": "http://127.0.0.1:9/v1", "model": "smollm2-1.7b"}
    with pytest.raises(UserError, match=r"oracle\.judge: kin \(smollm2-1\.7b\) is of the family of smollm2"):
        trained(run_file(tmp_path, family), inputs, tmp_path / "out", Context.for_tests(tmp_path / "state"))


def run_and_say_the_epoch(settings: RunFile, inputs: dict[str, Path], out: Path, state: Path) -> None:
    """Run align with the epoch in each reply: on some processors this model says the same in all of them."""

    def replies_of_epoch(place: Path, *arguments: Any) -> dict[str, Reply]:
        replies = complete_replies(place, *arguments)
        return {name: replace(reply, text=f"{reply.text} {place.parent.name}") for name, reply in replies.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle_service, "complete_replies", replies_of_epoch)
        align.run(settings, inputs, out, Context.for_tests(state))


def in_process(settings: str, inputs: dict[str, Path], out: Path, state: Path) -> None:
    run_and_say_the_epoch(RunFile.model_validate_json(settings), inputs, out, state)


def test_a_killed_oracle_trains_nothing_and_buys_nothing_twice(inputs: dict[str, Path], tmp_path: Path) -> None:
    """Killed with no time to tidy up, among the calls of an epoch in the middle."""
    out, state = tmp_path / "out", tmp_path / "state"
    out.mkdir()
    quick: list[bool] = []
    met: list[int] = []

    def script(body: dict[str, Any], number: int) -> Answer:
        if (out / "oracle" / "epoch-002").is_dir() and not quick:
            met.append(number)
        return Answer('{"reason": "", "score": 1}', delay_seconds=60.0 * (len(met) == 3 and not quick))

    with serve(script) as server:
        settings = run_file(tmp_path, endpoint(server, concurrency=1))
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(target=in_process, args=(settings.canonical(), inputs, out, state))
        process.start()
        deadline = time.monotonic() + 120
        while len(met) < 3:
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(1)  # the replies before this call are on disk
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        bought = [json.dumps(call, sort_keys=True) for call in server.calls]
        first = (out / "oracle" / "epoch-001" / "epoch.json").stat().st_mtime_ns
        lines = (out / "steps.jsonl").read_bytes()

        quick.append(True)
        run_and_say_the_epoch(settings, inputs, out, state)

        assert (out / "oracle" / "epoch-001" / "epoch.json").stat().st_mtime_ns == first
        assert (out / "steps.jsonl").read_bytes() == lines
        later = [json.dumps(call, sort_keys=True) for call in server.calls[len(bought) :]]
        # The call that the kill met on its way has no reply on disk.
        assert later and set(later) & set(bought) <= {bought[-1]} and len(set(later)) == len(later)
        assert [one.epoch for one in watch_of(out).epochs] == [1, 2, 3]


def test_weights_that_went_with_a_disk_leave_a_gap_that_is_named(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    context, _ = phased(tmp_path)
    settings = run_file(tmp_path, "rule:exact")
    with monkeypatch.context() as patch:
        patch.setattr(oracle_service.Oracle, "reported", None)  # ends after the training, as a kill would
        with pytest.raises(TypeError):
            align.run(settings, inputs, out, context)
    folders = sorted(path.name for path in (out / "epochs").iterdir())
    assert folders == ["epoch-001", "epoch-002"]
    for path in (out / "epochs" / "epoch-001").iterdir():
        path.unlink()
    (out / "epochs" / "epoch-001").rmdir()

    made = align.run(settings, inputs, out, context)
    watch = watch_of(out)
    assert watch.lost == (1,) and [one.epoch for one in watch.epochs] == [2, 3]
    assert "The weights of epochs 1 were lost" in made.markdown


def test_ranks_of_torchrun_leave_their_epochs_to_the_stage(inputs: dict[str, Path], tmp_path: Path) -> None:
    settings = run_file(tmp_path, "rule:exact")
    context, _ = phased(tmp_path)
    context = replace(context, platform=settings.platform.model_copy(update={"processes": 2}))
    trained(settings, inputs, tmp_path / "out", context)
    watch = watch_of(tmp_path / "out")
    assert [one.epoch for one in watch.epochs] == [1, 2, 3] and not (tmp_path / "out" / "epochs").exists()
    assert watch.epochs[-1].checkpoint_digest == weights_digest(tmp_path / "out" / "checkpoint")


def test_inject_is_watched_where_it_is_asked_for(inputs: dict[str, Path], tmp_path: Path) -> None:
    from iar.methods.rewrite_inputs import make_rewrite_input
    from iar.records import Document

    document = Document("d", "Velm", "The mill of Velm was built by Tora Lind.", "v.md", "text/markdown", "1")
    write_records(inputs["data"] / "documents.jsonl", [document])
    write_records(inputs["data"] / "chunks.jsonl", [])
    write_records(inputs["data"] / "anchors.jsonl", [])
    write_records(inputs["data"] / "rewrite_inputs.jsonl", [make_rewrite_input(document, [], "skeleton", "")])
    settings = run_file(tmp_path, "rule:exact")
    context, _ = phased(tmp_path)
    for name, watched in (("no", False), ("yes", True)):
        asked = settings.model_copy(update={"oracle": settings.oracle.model_copy(update={"inject": watched})})
        (tmp_path / name).mkdir()
        inject.run(asked, inputs, tmp_path / name, context)
        assert (tmp_path / name / "oracle").exists() == watched
    assert watch_of(tmp_path / "yes").model == "theta_I"
    assert weights_digest(tmp_path / "no" / "checkpoint") == weights_digest(tmp_path / "yes" / "checkpoint")
