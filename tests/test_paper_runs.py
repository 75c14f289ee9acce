"""The paper's run files: complete, valid, with the paper's settings and the memory that the estimate says."""

import os
import re
from pathlib import Path

import pytest

from iar.config import RunFile
from iar.services.model_shapes import SHAPES
from iar.services.run_files import load_run_file
from iar.services.training_fit import ADVISED_SHARE, GPU_GB, demand, memory_comment, places, pool_machine, pool_refusal

ROOT = Path(__file__).parents[1]
FILES = sorted(path for path in (ROOT / "pipelines" / "runs").glob("*.yaml") if path.stem != "demo")
PAGE = ROOT / "docs" / "models.md"
MODELS = ["llama-3.2-3b", "phi-4-mini", "qwen3-14b", "qwen3-32b", "qwen3-4b", "qwen3-8b", "smollm3-3b"]
# continuation:rewrite:instruction, the best on Common Corpus and on CCI4.0-M2; the paper has none for SmolLM3
RECIPES = {"llama": ("1:1:2", "1:1:2"), "phi": ("1:1:2", "1:1:2"), "qwen3": ("1:1:1", "1:0:0")}

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def header(run_file: RunFile) -> str:
    return "".join(f"# {line}\n" for line in memory_comment(run_file))


def table_row(run_file: RunFile) -> str:
    need = demand(run_file)
    assert need is not None
    kept = places(need)
    source = run_file.model.source
    size = f"{SHAPES[source].parameters / 1e9:.2f}"
    return f"| `{source}` | {size} | {need.engine} x {need.ranks} | {need.memory.total:.1f} | {' | '.join(kept)} |"


def test_every_model_has_a_run_file_for_each_corpus() -> None:
    assert [path.stem for path in FILES] == [f"{model}-{corpus}" for model in MODELS for corpus in ("cc", "cci")]


@each_file
def test_a_run_file_names_its_memory_as_estimated(path: Path) -> None:
    wanted = header(load_run_file(path))
    text = path.read_text(encoding="utf-8")
    if os.environ.get("IAR_UPDATE_DOCS"):
        first, *rest = text.splitlines(keepends=True)
        rest = rest[next(number for number, line in enumerate(rest) if line.startswith("# documents.path")) :]
        text = first + wanted + "".join(rest)
        path.write_text(text, encoding="utf-8")
    assert wanted in text, "set IAR_UPDATE_DOCS=1 and run again"


@each_file
def test_a_run_file_has_the_settings_of_the_paper(path: Path) -> None:
    run_file = load_run_file(path)
    for section in (run_file.inject, run_file.align):
        assert (section.epochs, section.learning_rate, section.batch_size) == (3, 5e-5, 64)
        assert (section.sequence_length, section.warmup_share, section.compute_dtype) == (4096, 0.05, "bfloat16")
        # A pass holds the longest row, so that the estimate bounds every pass.
        assert section.micro_batch_tokens == section.sequence_length
    assert run_file.recover == RunFile.model_fields["recover"].default
    assert run_file.select.tolerance_points == 1.0
    recipes = next((pair for name, pair in RECIPES.items() if path.stem.startswith(name)), ("1:1:1", "1:1:1"))
    assert run_file.inject.recipe == recipes[path.stem.endswith("-cci")]


@each_file
def test_a_run_file_fits_the_pool_that_it_names(path: Path) -> None:
    run_file = load_run_file(path, ["platform.backend=kubeflow"])
    need, machine = demand(run_file), pool_machine(run_file.platform)
    assert need is not None and machine is not None and pool_refusal(run_file) == ""
    assert need.memory.total <= ADVISED_SHARE * machine.total_gb
    assert need.ranks <= 8 * run_file.platform.pool.nodes


@each_file
def test_a_run_file_sets_no_section_by_silence(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    sections = re.findall(r"^(\w+):", text, re.MULTILINE)
    assert set(RunFile.model_fields) - set(sections) <= {"baselines", "diagnose", "oracle"}
    assert all(len(line) <= 120 for line in text.splitlines())


def test_run_files_differ_in_name_model_and_corpus() -> None:
    names = {load_run_file(path).run.name for path in FILES}
    models = {load_run_file(path).register.model_name for path in FILES}
    assert len(names) == len(models) == len(FILES)
    assert {load_run_file(path).model.source for path in FILES} == set(SHAPES) - {"HuggingFaceTB/SmolLM2-135M-Instruct"}


def test_the_table_of_models_is_as_estimated() -> None:
    rows = [table_row(load_run_file(path)) for path in FILES if path.stem.endswith("-cc")]
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("IAR_UPDATE_DOCS"):
        text = re.sub(r"(\| ---.*\|\n)(\| `.*\|\n)*", lambda match: match[1] + "\n".join(rows) + "\n", text, count=1)
        PAGE.write_text(text, encoding="utf-8")
    assert "\n".join(rows) in text, "set IAR_UPDATE_DOCS=1 and run again"
    assert all(size in text for size in GPU_GB)
