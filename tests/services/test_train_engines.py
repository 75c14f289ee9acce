"""Every engine takes the gradient that plain autograd takes, whatever the packing, the passes and the ranks."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from iar.config import TrainingSection
from iar.errors import UserError
from iar.methods.batching import rank_parts
from iar.services.adapters import LoraSettings
from iar.services.distributed import World, run_processes
from iar.services.train_engines import open_engine
from iar.services.train_replica import ReplicaEngine
from tests.services.gradient_worker import LEAST_PASSES, SEVERAL_PASSES, STEPS, cases, passes, settings_of
from tests.training_rows import ROWS, plain_gradient

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def plain(tiny_model_folder: Path) -> dict[str, tuple[float, dict[str, torch.Tensor]]]:
    return {step: plain_gradient(tiny_model_folder, rows) for step, rows in STEPS.items()}


def test_the_cases_have_one_pass_and_several_on_each_of_two_ranks() -> None:
    for _, settings in cases():
        for part in rank_parts(ROWS, 2):
            several = settings.micro_batch_tokens == SEVERAL_PASSES
            assert passes(part, settings) >= LEAST_PASSES if several else passes(part, settings) == 1


@pytest.mark.parametrize(("case", "settings"), cases(), ids=[case for case, _ in cases()])
@pytest.mark.parametrize("step", STEPS)
def test_one_process_has_the_gradient_of_plain_autograd(
    tiny_model_folder: Path,
    plain: dict[str, tuple[float, dict[str, torch.Tensor]]],
    case: str,
    settings: TrainingSection,
    step: str,
) -> None:
    engine = ReplicaEngine(tiny_model_folder, settings)
    gradient = engine.gradients(STEPS[step])
    loss, wanted = plain[step]
    assert gradient.loss == pytest.approx(loss, abs=1e-5)
    norm = math.sqrt(sum(float(grad.square().sum()) for grad in wanted.values()))
    assert gradient.norm == pytest.approx(norm, rel=1e-5)
    for name, master in engine.masters.items():
        assert master.grad is not None and torch.allclose(master.grad, wanted[name], atol=TOLERANCE), name


@pytest.mark.parametrize(
    ("engine", "ranks"),
    [
        ("ddp", 2),
        ("zero2", 2),
        pytest.param("ddp", 3, marks=pytest.mark.slow),
        pytest.param("zero2", 1, marks=pytest.mark.slow),
        pytest.param("zero3", 2, marks=pytest.mark.slow),
    ],
)
def test_ranks_together_have_the_gradient_of_plain_autograd(
    tiny_model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plain: dict[str, tuple[float, dict[str, torch.Tensor]]],
    engine: str,
    ranks: int,
) -> None:
    if engine.startswith("zero"):
        pytest.importorskip("deepspeed")
    monkeypatch.chdir(ROOT)
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"engine": engine, "model": str(tiny_model_folder)}))
    code = run_processes("tests.services.gradient_worker", str(job), ranks, tmp_path / "log.txt", lambda: None)
    assert code == 0, (tmp_path / "log.txt").read_text()[-3000:]

    losses = json.loads((tmp_path / "losses.json").read_text())
    gradients = load_file(tmp_path / "gradients.safetensors")
    assert len(losses) == len(cases()) * len(STEPS)
    for place, loss in losses.items():
        wanted_loss, wanted = plain[place.rpartition("/")[2]]
        assert loss == pytest.approx(wanted_loss, abs=1e-5), place
        for name, grad in wanted.items():
            assert torch.allclose(gradients[f"{place}/{name}"], grad, atol=TOLERANCE), f"{place}: {name}"


def test_rows_are_divided_about_equally_in_tokens_and_none_is_lost() -> None:
    parts = rank_parts(ROWS, 2)
    assert sorted(row.id for part in parts for row in part) == sorted(row.id for row in ROWS)
    tokens = [sum(len(row.token_ids) for row in part) for part in parts]
    assert max(tokens) - min(tokens) <= min(len(row.token_ids) for row in ROWS)
    assert rank_parts(ROWS[:1], 3) == [ROWS[:1], [], []]


def test_an_adapter_trains_its_factors_alone_and_is_merged(tiny_model_folder: Path) -> None:
    pytest.importorskip("peft")
    engine = ReplicaEngine(tiny_model_folder, settings_of(True, 4096), adapter=LoraSettings(4, 8.0, 0))
    assert engine.masters and all("lora_" in name for name in engine.masters)
    for _ in range(2):  # the first step only moves the second factors away from zero
        engine.gradients(ROWS)
        engine.update(1e-2)
    trained = engine.finished_model(torch.float32)
    assert trained is not None
    start = load_file(tiny_model_folder / "model.safetensors")
    changed = {name for name, weight in trained.state_dict().items() if name in start and not weight.equal(start[name])}
    assert changed and all("proj" in name for name in changed), "embedding, head and norms stay"


def test_an_adapter_is_refused_by_an_engine_that_trains_all_weights(tiny_model_folder: Path) -> None:
    pytest.importorskip("deepspeed")
    with pytest.raises(UserError, match=r"platform\.training_engine: zero2 trains all weights.*set .* to auto"):
        open_engine("zero2", tiny_model_folder, settings_of(True, 64), World(), LoraSettings(4, 8.0, 0))
