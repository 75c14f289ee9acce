"""Training on a real two-layer model: right gradients, exact restart, repeatable results."""

import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from iar.config import InjectSection, ModelSection, PlatformSection, TrainingSection
from iar.errors import PermanentError, UserError
from iar.methods.batching import TokenRow
from iar.services import training_fit
from iar.services.adapters import LoraSettings
from iar.services.model_shapes import shape_of
from iar.services.telemetry import StepLog
from iar.services.trainer import Trainer, TrainingJob, engine_name, learning_rate, train
from iar.services.training_memory import estimate
from tests.services import killed_training
from tests.training_rows import ROWS

SETTINGS = TrainingSection(epochs=2, learning_rate=1e-3, batch_size=3, micro_batch_tokens=40, checkpoint_seconds=1e-9)
ROOT = Path(__file__).parents[2]
LONG = SETTINGS.model_copy(update={"epochs": 8})  # 24 steps
KEEPING = LONG.model_copy(update={"restart_points": 100})
TWO = PlatformSection(processes=2)


def ignore(step: int, steps: int, note: str) -> None:
    """No progress wanted."""


def stop_after(count: int) -> Callable[[int, int, str], None]:
    """Raise once `count` steps are done, as a kill between two steps would end the process."""

    def on_step(step: int, steps: int, note: str) -> None:
        if step == count:
            raise KeyboardInterrupt

    return on_step


@pytest.mark.parametrize("interrupted_after", [1, 2, 4, 5])
def test_an_interrupted_training_ends_with_the_same_bits(
    tiny_model_folder: Path, tmp_path: Path, interrupted_after: int
) -> None:
    whole = train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "whole", ignore)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "cut", stop_after(interrupted_after))
    resumed = train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "cut", ignore)
    assert resumed.digest == whole.digest
    assert resumed.steps == whole.steps == 6
    logged = [json.loads(line)["step"] for line in (tmp_path / "cut" / "steps.jsonl").read_text().splitlines()]
    assert logged == [1, 2, 3, 4, 5, 6]
    assert not (tmp_path / "cut" / "restart").exists()


def test_a_half_written_restart_point_is_not_seen(tiny_model_folder: Path, tmp_path: Path) -> None:
    whole = train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path / "whole", ignore)
    out = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        train(tiny_model_folder, ROWS, SETTINGS, 5, out, stop_after(4))
    point = next((out / "restart").iterdir())
    shutil.copytree(point, out / "restart" / "step-00000005.part")
    shutil.copytree(point, out / "restart" / "step-00000006", ignore=shutil.ignore_patterns("complete.json"))
    with (out / "steps.jsonl").open("a") as log:
        log.write('{"step": 5, "torn')
    assert train(tiny_model_folder, ROWS, SETTINGS, 5, out, ignore).digest == whole.digest


@pytest.mark.parametrize(
    ("what", "rows", "settings"),
    [
        ("rows", [replace(ROWS[0], token_ids=(*ROWS[0].token_ids[:-1], 4)), *ROWS[1:]], {}),
        ("max_gradient_norm", ROWS, {"max_gradient_norm": 0.5}),
        ("compute_dtype", ROWS, {"compute_dtype": "bfloat16"}),
        ("weight_decay", ROWS, {"weight_decay": 0.1}),
    ],
)
def test_a_restart_point_is_not_taken_up_with_other_numbers(
    tiny_model_folder: Path, tmp_path: Path, what: str, rows: list[TokenRow], settings: dict[str, object]
) -> None:
    exact = SETTINGS.model_copy(update={"compute_dtype": "float32"})
    with pytest.raises(KeyboardInterrupt):
        train(tiny_model_folder, ROWS, exact, 5, tmp_path, stop_after(3))
    with pytest.raises(UserError, match=rf"restart point of another training: {what} was .*, is .*; delete the folder"):
        train(tiny_model_folder, rows, exact.model_copy(update=settings), 5, tmp_path, ignore)


def test_passes_may_be_divided_otherwise_after_a_restart(tiny_model_folder: Path, tmp_path: Path) -> None:
    exact = SETTINGS.model_copy(update={"compute_dtype": "float32"})
    whole = train(tiny_model_folder, ROWS, exact, 5, tmp_path / "whole", ignore)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_model_folder, ROWS, exact, 5, tmp_path / "cut", stop_after(3))
    other = exact.model_copy(update={"micro_batch_tokens": 4096, "packing": False, "activation_checkpointing": True})
    resumed = train(tiny_model_folder, ROWS, other, 5, tmp_path / "cut", ignore)
    assert resumed.final_loss == pytest.approx(whole.final_loss, abs=1e-4)


def test_the_checkpoint_keeps_dtype_and_tied_head_of_the_base(tiny_model_folder: Path, tmp_path: Path) -> None:
    train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path, ignore)
    before = load_file(tiny_model_folder / "model.safetensors")
    after = load_file(tmp_path / "checkpoint" / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in after.items()} == {n: t.dtype for n, t in before.items()}
    assert "lm_head.weight" not in after
    assert not torch.equal(after["model.embed_tokens.weight"], before["model.embed_tokens.weight"])


def test_training_lowers_the_loss_on_its_rows(tiny_model_folder: Path, tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"epochs": 40, "learning_rate": 3e-3, "checkpoint_seconds": 1e9})
    train(tiny_model_folder, ROWS, settings, 5, tmp_path, ignore)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.5 * losses[0]


def test_a_non_finite_loss_stops_before_the_weights_change(tiny_model_folder: Path) -> None:
    trainer = Trainer(tiny_model_folder, SETTINGS)
    name = "model.norm.weight"
    with torch.no_grad():
        dict(trainer.model.named_parameters())[name].fill_(math.inf)
    before = {key: master.clone() for key, master in trainer.masters.items()}
    with pytest.raises(PermanentError, match=r"loss nan .* on rows row-3, row-0, .*lower learning_rate"):
        trainer.step(ROWS, 1e-3)
    assert all(torch.equal(before[key], master) for key, master in trainer.masters.items())


def test_schedule_warms_up_then_falls_as_a_cosine_to_zero() -> None:
    rates = [learning_rate(step, 100, 1.0, 0.05) for step in range(100)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[52] == pytest.approx(0.5, abs=0.02)
    assert rates[-1] < 0.001


PROCESS = """
import json, os, signal, sys
from pathlib import Path
from iar.config import PlatformSection, TrainingSection
from iar.errors import IarError
from iar.services.trainer import train
from tests.training_rows import ROWS

job = json.loads(sys.argv[1])

def on_step(step, steps, note):
    if step == job["step"]:
        os.kill(os.getpid(), job["signal"])

settings = TrainingSection.model_validate(job["settings"])
platform = PlatformSection(processes=job["processes"])
try:
    train(Path(job["model"]), ROWS, settings, 5, Path(job["out"]), on_step, platform)
except IarError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def train_and_signal(
    model: Path, out: Path, settings: TrainingSection, step: int, number: int, processes: int = 1
) -> subprocess.CompletedProcess[str]:
    """Train in a process of its own, which sends itself a signal once `step` steps are done."""
    job = {"model": str(model), "out": str(out), "settings": settings.model_dump(), "step": step}
    job |= {"signal": number, "processes": processes}
    command = [sys.executable, "-c", PROCESS, json.dumps(job)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


STOPS = [(signal.SIGKILL, step) for step in random.Random(3).sample(range(1, 24), 5)]
STOPS += [(signal.SIGTERM, step) for step in random.Random(4).sample(range(1, 24), 5)]


@pytest.mark.parametrize(
    ("number", "step"),
    [
        pytest.param(number, step, marks=() if place in (0, 5) else pytest.mark.slow, id=f"{number.name} at {step}")
        for place, (number, step) in enumerate(STOPS)
    ],
)
def test_a_killed_process_is_taken_up_to_the_same_bits(
    tiny_model_folder: Path, tmp_path: Path, number: signal.Signals, step: int
) -> None:
    # With points far apart the resumed training repeats steps; SIGTERM writes a point of its own.
    settings = LONG.model_copy(update={"checkpoint_seconds": 0.05})
    whole = train(tiny_model_folder, ROWS, settings, 5, tmp_path / "whole", ignore)
    ended = train_and_signal(tiny_model_folder, tmp_path / "cut", settings, step, number)
    if number == signal.SIGTERM:
        assert ended.returncode == 4
        assert f"told to end after step {step} of 24, state saved in" in ended.stdout
        assert f"step-{step:08d}" in {path.name for path in (tmp_path / "cut" / "restart").iterdir()}
    else:
        assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "cut" / "checkpoint").exists()
    resumed = train(tiny_model_folder, ROWS, settings, 5, tmp_path / "cut", ignore)
    assert (resumed.digest, resumed.steps) == (whole.digest, 24)


@pytest.mark.slow
def test_a_training_that_is_killed_ten_times_from_outside_ends_with_the_same_bits(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    settings = SETTINGS.model_copy(update={"epochs": 100, "checkpoint_seconds": 0.05})
    whole = train(tiny_model_folder, ROWS, settings, 5, tmp_path / "whole", ignore)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["transformers.models.llama.modeling_llama", killed_training.__name__])
    draw, log = random.Random(11), StepLog(tmp_path / "cut" / "steps.jsonl")
    for number in 5 * (signal.SIGKILL, signal.SIGTERM):
        log.follow()
        process = context.Process(target=killed_training.main, args=(tiny_model_folder, tmp_path / "cut", settings))
        process.start()
        wait_for_steps(log, process, draw.randint(1, 12))
        time.sleep(draw.uniform(0, 0.02))  # anywhere in a step, or while a restart point is being written
        os.kill(process.pid or 0, number)
        process.join()
        assert process.exitcode == (4 if number == signal.SIGTERM else -signal.SIGKILL)
    assert not (tmp_path / "cut" / "checkpoint").exists()
    resumed = train(tiny_model_folder, ROWS, settings, 5, tmp_path / "cut", ignore)
    assert (resumed.digest, resumed.steps) == (whole.digest, 300)


def wait_for_steps(log: StepLog, process: BaseProcess, count: int) -> None:
    """Return once the process has made `count` steps beyond those of its restart point."""
    while not log.new() and process.is_alive():  # those that the restart point keeps come first
        time.sleep(0.001)
    made = 0
    while made < count and process.is_alive():
        made += len(log.new())
        time.sleep(0.001)


def test_sigterm_in_the_last_step_lets_the_training_finish(tiny_model_folder: Path, tmp_path: Path) -> None:
    ended = train_and_signal(tiny_model_folder, tmp_path, SETTINGS, 6, signal.SIGTERM)
    assert ended.returncode == 0
    assert (tmp_path / "checkpoint" / "checkpoint.json").is_file()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_two_ranks_that_are_ended_are_taken_up_to_the_same_bits(
    tiny_model_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    settings = SETTINGS.model_copy(update={"epochs": 100, "checkpoint_seconds": 0.2})
    whole = train(tiny_model_folder, ROWS, settings, 5, tmp_path / "whole", ignore, TWO)
    ended = train_and_signal(tiny_model_folder, tmp_path / "cut", settings, 20, number, processes=2)
    assert ended.returncode == (4 if number == signal.SIGTERM else -number), ended.stderr
    resumed = train(tiny_model_folder, ROWS, settings, 5, tmp_path / "cut", ignore, TWO)
    assert (resumed.digest, resumed.steps, resumed.ranks) == (whole.digest, 300, 2)
    assert not (tmp_path / "cut" / "job").exists() and not (tmp_path / "cut" / "restart").exists()


def test_one_rank_goes_on_where_two_stopped(tiny_model_folder: Path, tmp_path: Path) -> None:
    whole = train(tiny_model_folder, ROWS, LONG, 5, tmp_path / "whole", ignore)
    stop_half_way(tiny_model_folder, tmp_path / "cut", TWO)
    resumed = train(tiny_model_folder, ROWS, KEEPING, 5, tmp_path / "cut", ignore)
    assert (resumed.steps, resumed.ranks) == (24, 1)
    # Ranks add up in another order, so the bits differ where the numbers do not.
    assert resumed.final_loss == pytest.approx(whole.final_loss, abs=1e-4)
    assert weights_are_close(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["zero2", "zero3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_zero_is_taken_up_to_the_same_bits_and_ends_where_one_process_ends(
    tiny_model_folder: Path, tmp_path: Path, engine: str, dtype: str
) -> None:
    pytest.importorskip("deepspeed")
    update = {"compute_dtype": dtype}
    platform = PlatformSection.model_validate({"training_engine": engine, "processes": 2})
    settings = LONG.model_copy(update=update)
    single = train(tiny_model_folder, ROWS, settings, 5, tmp_path / "single", ignore)
    whole = train(tiny_model_folder, ROWS, settings, 5, tmp_path / "whole", ignore, platform)
    stop_half_way(tiny_model_folder, tmp_path / "cut", platform, update)
    resumed = train(tiny_model_folder, ROWS, KEEPING.model_copy(update=update), 5, tmp_path / "cut", ignore, platform)
    assert (resumed.digest, resumed.steps, resumed.engine) == (whole.digest, 24, engine)
    exact = dtype == "float32"
    assert whole.final_loss == pytest.approx(single.final_loss, abs=1e-4 if exact else 0.1)
    assert weights_are_close(tmp_path / "whole", tmp_path / "single", 1e-4 if exact else 0.02)


def stop_half_way(model: Path, out: Path, platform: PlatformSection, update: dict[str, str] | None = None) -> None:
    """Train so that the checkpoint cannot be written, and leave the restart point of step 12 of 24 as the newest."""
    out.mkdir()
    (out / "checkpoint").write_text("a file where the folder belongs: the training fails after its last step")
    with pytest.raises(PermanentError, match="rank 0: unexpected "):
        train(model, ROWS, KEEPING.model_copy(update=update), 5, out, ignore, platform)
    (out / "checkpoint").unlink()
    for step in range(13, 24):
        shutil.rmtree(out / "restart" / f"step-{step:08d}")
    assert (out / "restart" / "step-00000012" / "state-1-of-2.safetensors").is_file()


def weights_are_close(one: Path, other: Path, tolerance: float = 1e-4) -> bool:
    """Whether the checkpoints of two trainings hold about the same weights."""
    weights, others = (load_file(out / "checkpoint" / "model.safetensors") for out in (one, other))
    assert weights.keys() == others.keys()
    return all(torch.allclose(weight, others[name], atol=tolerance) for name, weight in weights.items())


def test_rows_that_give_no_number_stop_all_ranks_and_are_named(tiny_model_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    broken = shutil.copytree(tiny_model_folder, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"].fill_(math.inf)
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PermanentError, match=r"loss nan .* on rows row-\d, .*lower learning_rate"):
        train(broken, ROWS, SETTINGS, 5, tmp_path / "out", ignore, TWO)


def test_a_loss_spike_is_named_in_the_log_and_ends_the_training_only_where_asked(
    tiny_model_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # The first row alone is learned by heart, then rows never seen come last: every epoch is one order of all rows.
    rows = [replace(ROWS[0], id=f"same-{number}") for number in range(40)]
    settings = SETTINGS.model_copy(update={"batch_size": 1, "epochs": 1, "learning_rate": 3e-3})
    train(tiny_model_folder, rows, settings, 5, tmp_path / "calm", ignore)
    assert "deviations above" not in capfd.readouterr().err

    order = [json.loads(line)["loss"] for line in (tmp_path / "calm" / "steps.jsonl").read_text().splitlines()]
    assert order[-1] < order[0]
    odd = TokenRow("odd", "qa", tuple(range(380, 340, -1)), 3)
    spiked = settings.model_copy(update={"epochs": 2})
    train(tiny_model_folder, [*rows, odd], spiked, 5, tmp_path / "spiked", ignore)
    steps = [json.loads(line) for line in (tmp_path / "spiked" / "steps.jsonl").read_text().splitlines()]
    assert any("loss_spike_z" in step for step in steps)
    assert "deviations above the steps before, on rows odd" in capfd.readouterr().err
    with pytest.raises(PermanentError, match="on rows odd; look at these rows"):
        stopping = spiked.model_copy(update={"stop_on_loss_spike": True})
        train(tiny_model_folder, [*rows, odd], stopping, 5, tmp_path / "stopped", ignore)


def test_each_step_tells_speed_efficiency_memory_and_time_left(tiny_model_folder: Path, tmp_path: Path) -> None:
    result = train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path, ignore)
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    for step in steps:
        assert step["tokens_per_second"] == pytest.approx(step["tokens"] / step["seconds"])
        assert step["target_tokens_per_second"] < step["tokens_per_second"]
        assert step["positions_per_second"] == pytest.approx(step["positions"] / step["seconds"])
        assert step["efficiency"] == pytest.approx(step["tokens"] / step["positions"])
        assert step["memory_bytes"] > 0 and step["eta_seconds"] >= 0
        assert step["loss"] > 0 and step["token_loss"] > 0 and step["gradient_norm"] > 0
    assert steps[-1]["eta_seconds"] == 0
    assert result.tokens == 2 * sum(len(row.token_ids) for row in ROWS) == sum(step["tokens"] for step in steps)
    assert result.positions == sum(step["positions"] for step in steps)


def test_padding_is_seen_in_the_efficiency(tiny_model_folder: Path, tmp_path: Path) -> None:
    padded = SETTINGS.model_copy(update={"packing": False, "micro_batch_tokens": 4096})
    result = train(tiny_model_folder, ROWS, padded, 5, tmp_path, ignore)
    assert result.tokens < result.positions


def test_a_training_that_does_not_fit_is_refused_with_what_would(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*ROWS, TokenRow("long", "instruction", (7,) * 50_000, 4)]
    monkeypatch.setattr(training_fit, "this_machine", lambda ranks: training_fit.Machine(0, 0.1, 0.1))
    with pytest.raises(UserError, match=r"inject: training .* takes about .* GB.*; set inject\."):
        train(tiny_model_folder, rows, InjectSection(), 5, tmp_path, ignore)


def test_the_rows_there_are_decide_what_fits(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = shape_of(ModelSection(source=str(tiny_model_folder)))
    assert shape is not None
    settings = SETTINGS.model_copy(update={"compute_dtype": "float32", "sequence_length": 4096})
    short, long = (estimate(shape, settings, "single", 1, pass_tokens=tokens).total for tokens in (40, 400))
    between = training_fit.Machine(0, (short + long) / 2, 1.0)
    monkeypatch.setattr(training_fit, "this_machine", lambda ranks: between)
    train(tiny_model_folder, ROWS, settings, 5, tmp_path / "short", ignore)
    longer = [*ROWS, TokenRow("long", "qa", (7,) * 400, 4)]
    with pytest.raises(UserError, match=r"takes about .*; set training\.(activation_checkpointing|sequence_length)="):
        train(tiny_model_folder, longer, settings, 5, tmp_path / "long", ignore)


def test_a_cluster_is_not_asked_for_a_job_that_its_gpus_cannot_hold(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_fit, "GPU_RESERVE_GB", 42.2999)
    with pytest.raises(UserError, match=r"and there are 0\.0 GB on NVIDIA-A100-SXM4-40GB; choose a smaller model"):
        train(tiny_model_folder, ROWS, SETTINGS, 5, tmp_path, ignore, PlatformSection(backend="kubeflow"))


def test_an_adapter_is_not_refused_for_the_memory_of_a_whole_training(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    shape = shape_of(ModelSection(source=str(tiny_model_folder)))
    assert shape is not None
    adapter = LoraSettings(2, 4.0, 0)
    settings = SETTINGS.model_copy(update={"compute_dtype": "float32", "sequence_length": 40})
    whole, less = (estimate(shape, settings, "single", 1, which).total for which in (None, adapter))
    between = training_fit.Machine(1, (whole + less) / 2, 1.0)
    monkeypatch.setattr(training_fit, "this_machine", lambda ranks: between)
    with pytest.raises(UserError, match="takes about"):
        train(tiny_model_folder, ROWS, settings, 5, tmp_path / "whole", ignore)
    train(tiny_model_folder, ROWS, settings, 5, tmp_path / "adapter", ignore, adapter=adapter)


def test_a_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    job = TrainingJob(tmp_path / "model", SETTINGS, 5, tmp_path / "out", "zero2")
    job.write(tmp_path / "job", ROWS)
    assert TrainingJob.read(tmp_path / "job") == (job, ROWS)


@pytest.mark.parametrize(
    ("platform", "name"),
    [({}, "single"), ({"processes": 2}, "ddp"), ({"training_engine": "zero3", "processes": 8}, "zero3")],
)
def test_the_engine_follows_from_the_platform(platform: dict[str, object], name: str) -> None:
    assert engine_name(PlatformSection.model_validate(platform)) == name


def test_one_engine_with_two_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="single has one process, not 2; set processes to 1 or training_engine to ddp"):
        PlatformSection(training_engine="single", processes=2)
