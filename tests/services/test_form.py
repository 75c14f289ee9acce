"""The form of the Kubeflow UI: what is filled in is the run file written out, and what is wrong with it is one line."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from iar.components.form import form
from iar.config import QaBuildSection, RunFile
from iar.errors import TemporaryError, UserError
from iar.services.form import COMPILED, FIELDS, effective
from iar.services.guards import kfp_mended
from iar.services.run_files import load_run_file

REPOSITORY = Path(__file__).parents[2]
FILLED: dict[str, str | int] = {
    "model": "/state/models/other",
    "documents": "/state/handbook",
    "recipe": "2:1:1",
    "inject_epochs": 5,
    "align_epochs": 2,
    "gpu_pool": "nvidia.com/gpu.product=NVIDIA-H100, pool=b",
    "experiment": "night",
}
WRITTEN = [
    "model.source=/state/models/other", "documents.path=/state/handbook", "inject.recipe=2:1:1", "inject.epochs=5",
    "align.epochs=2", "platform.pool.node_selector={nvidia.com/gpu.product: NVIDIA-H100, pool: b}",
    "register.experiment=night",
]  # fmt: skip
EMPTY: dict[str, str | int] = {name: 0 if name.endswith("epochs") else "" for name in ("run_file", *FIELDS)}


@pytest.fixture
def compiled() -> RunFile:
    """The run file that the pipeline was compiled from."""
    return load_run_file(REPOSITORY / "manifests/overlays/a100/run.yaml")


def fill(compiled: RunFile, **fields: str | int) -> RunFile:
    return effective(EMPTY | fields, compiled.canonical())


def refused(compiled: RunFile, **fields: str | int) -> str:
    with pytest.raises(UserError) as caught:
        fill(compiled, **fields)
    return str(caught.value)


def test_an_empty_form_is_the_compiled_run_file(compiled: RunFile) -> None:
    assert fill(compiled) == effective({}, compiled.canonical()) == compiled
    assert fill(compiled, run_file=" \n", model=" ") == compiled


def test_a_filled_form_is_the_same_run_as_the_run_file_written_out(compiled: RunFile) -> None:
    written = load_run_file(REPOSITORY / "manifests/overlays/a100/run.yaml", WRITTEN)
    made = fill(compiled, **FILLED)
    assert set(FILLED) == set(FIELDS)
    assert (made, made.run_id) == (written, written.run_id) and made.run_id != compiled.run_id


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_changes_its_own_key_and_nothing_else(compiled: RunFile, field: str) -> None:
    before, after = compiled.model_dump(mode="json"), fill(compiled, **{field: FILLED[field]}).model_dump(mode="json")
    section = FIELDS[field].partition(".")[0]
    assert {name for name in before if before[name] != after[name]} == {section}


def test_a_value_is_taken_as_text_whatever_it_looks_like(compiled: RunFile) -> None:
    assert fill(compiled, experiment="1e5", documents=" true ").register.experiment == "1e5"
    assert fill(compiled, documents=" true ").documents.path == "true"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"inject_epochs": -3}, "inject_epochs: inject.epochs: -3 is out of range; it must be greater than 0"),
        ({"recipe": "0:0:0"}, "recipe: inject.recipe: '0:0:0' must be three whole numbers that are not all zero"),
        ({"gpu_pool": "h100"}, "gpu_pool: 'h100' is no label of nodes; write label=value"),
        ({"run_file": "run: {name: x}\ndocuments: 3"}, "run_file:2: documents: 3 is not a section"),
        ({"run_file": "/state/nowhere.yaml"}, "run_file: /state/nowhere.yaml: No such file or directory; tasks see"),
        ({"run_file": "s3://iar/x.yaml"}, "run_file: reading s3://iar/x.yaml: no credentials"),
    ],
)
def test_a_bad_value_is_one_line_that_names_its_field(
    compiled: RunFile, fields: dict[str, str | int], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    said = refused(compiled, **fields)
    assert said.startswith(line) and "\n" not in said


def test_every_fault_has_its_line(compiled: RunFile) -> None:
    lines = refused(compiled, inject_epochs=-1, recipe="x").splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == ["inject_epochs", "recipe"]


def test_a_run_file_may_be_filled_in_as_text_or_canonical_json(compiled: RunFile) -> None:
    other = load_run_file(REPOSITORY / "manifests/overlays/a100/run.yaml", ["run.seed=5"])
    assert fill(compiled, run_file=other.canonical()) == other
    assert fill(compiled, run_file=yaml.safe_dump(other.model_dump(mode="json"))) == other
    assert fill(compiled, run_file=other.canonical(), inject_epochs=9).inject.epochs == 9


class Files(http.server.BaseHTTPRequestHandler):
    content = b""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/run.yaml" else 404)
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def web() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_run_file_may_lie_on_the_volume_or_a_web_server(compiled: RunFile, tmp_path: Path, web: str) -> None:
    text = yaml.safe_dump(compiled.model_dump(mode="json")).replace("seed: 17", "seed: 18")
    path = tmp_path / "a run.yaml"
    path.write_text(text)
    Files.content = text.encode()
    assert fill(compiled, run_file=path.as_uri()).run.seed == 18
    assert fill(compiled, run_file=f"{web}/run.yaml").run.seed == 18
    assert refused(compiled, run_file=f"{web}/x.yaml") == f"run_file: {web}/x.yaml answers 404; correct the address"
    Files.content = b"run:\n  name: x\n  sed: 3\ndocuments: {path: x}\n"
    assert refused(compiled, run_file=f"{web}/run.yaml").startswith(f"{web}/run.yaml:3: run.sed: unknown key")
    Files.content = b"x" * 1_000_001
    assert "larger than" in refused(compiled, run_file=f"{web}/run.yaml")
    with pytest.raises(TemporaryError, match="does not answer"):
        fill(compiled, run_file="http://127.0.0.1:9/run.yaml")


@pytest.mark.parametrize("key", COMPILED)
def test_a_run_file_that_is_another_pipeline_is_refused(compiled: RunFile, key: str) -> None:
    values: dict[str, Any] = {
        "baselines.recipes": ["lora"], "platform.backend": "local", "platform.candidate_shards": 3,
        "platform.pool.secrets": {}, "platform.pool.tolerations": [], "platform.pool.cpus_per_process": 3,
        "platform.pool.memory_gb_per_process": 3, "qa_build.shards": 3, "select.prune_to": 1,
    }  # fmt: skip
    data = compiled.model_dump(mode="json")
    target = data
    *sections, name = key.split(".")
    for section in sections:
        target = target[section]
    target[name] = values.get(key, "other")
    said = refused(compiled, run_file=RunFile.model_validate(data).canonical())
    assert said.startswith(f"run_file: {key}: ") and "this pipeline was compiled for" in said and "\n" not in said


def test_a_pool_that_cannot_hold_the_training_is_refused_before_any_task(compiled: RunFile) -> None:
    told = refused(compiled, model="Qwen/Qwen3-32B", gpu_pool="nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB")
    assert "there are 40.3 GB on NVIDIA-A100-SXM4-40GB; " in told and "\n" not in told


def test_the_task_gives_the_others_the_effective_run_file_and_the_nodes(compiled: RunFile, tmp_path: Path) -> None:
    from kfp import local

    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path), raise_on_error=True)
    with kfp_mended(tmp_path / "log.txt"):
        task = form(compiled=compiled.canonical(), **EMPTY | FILLED)
        assert RunFile.model_validate_json(task.outputs["run_file"]) == fill(compiled, **FILLED)
        assert task.outputs["node_selector"] == {"nvidia.com/gpu.product": "NVIDIA-H100", "pool": "b"}
        text = Path(task.outputs["summary"].path).read_text()
        assert fill(compiled, **FILLED).run_id in text and "`inject.epochs`: 5" in text


def test_the_task_ends_with_one_line_and_the_users_exit_code(
    compiled: RunFile, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from types import SimpleNamespace

    with pytest.raises(SystemExit) as ended:
        form.python_func(compiled.canonical(), SimpleNamespace(path=tmp_path / "x"), **EMPTY | {"recipe": "x"})
    assert ended.value.code == 2
    assert capfd.readouterr().err == (
        "recipe: inject.recipe: 'x' must be three whole numbers that are not all zero, such as 1:1:2\n"
    )


def test_a_run_file_that_counts_tokens_needs_a_pipeline_that_gives_it_the_model(compiled: RunFile) -> None:
    counting = compiled.model_copy(update={"qa_build": QaBuildSection(chunk_tokens=256)})
    message = refused(compiled, run_file=counting.canonical())
    assert message.startswith("run_file: qa_build: counts the model's tokens") and "iar submit" in message
    assert fill(counting, run_file=compiled.canonical()).qa_build.chunk_tokens is None
