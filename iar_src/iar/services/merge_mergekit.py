"""mergekit as the engine: one run of its own command a candidate, in a process of its own, into the same folders."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iar.errors import PermanentError, UserError
from iar.methods.merge_facts import Sums
from iar.methods.merge_grid import SEVERAL, Recipe
from iar.records import Candidate
from iar.services.checkpoints import ELEMENT_BYTES, INDEX_NAME, TORCH_NAMES, MappedTensors, TensorInfo, weights_digest
from iar.services.merge_checks import check_device, check_in_range
from iar.services.merge_stream import MergeSettings, Parents, ReportProgress, mapped_parents, one_torch_thread
from iar.services.merge_writers import check_disk, complete, fresh_part, remove_parts

MODULE = "mergekit.scripts.run_yaml"
LAST_LINES = 3
METHODS = {
    "slerp": "slerp",
    "task_arithmetic": "task_arithmetic",
    "ties": "ties",
    "dare": "dare_linear",
    "dare_ties": "dare_ties",
    "soup": "task_arithmetic",
}


def merge_with_mergekit(
    base: Path,
    tuned: Path,
    recipes: Sequence[Recipe],
    out: Path,
    parents: Mapping[str, str],
    on_progress: ReportProgress | None = None,
    settings: MergeSettings | None = None,
) -> list[Candidate]:
    """Write one Hugging Face folder a recipe, as merge_candidates does. DARE draws other masks than its.

    Raises UserError without mergekit, for a base of several dtypes and where the checkpoints do not belong together,
    PermanentError where mergekit fails and for a value that is NaN or infinite.
    """
    if not recipes:
        return []
    settings = settings or MergeSettings()
    check_device(settings.device)
    if importlib.util.find_spec("mergekit") is None:
        raise UserError("recover.engine: mergekit is not installed; pip install 'iar[merge]', or set it to stream")
    mapped, layout = mapped_parents(base, tuned, recipes, settings)
    dtype = _one_dtype(layout, base)
    for info in layout:
        mapped.check_finite(info.name)
        mapped.release(info.name)
    out.mkdir(parents=True, exist_ok=True)
    remove_parts(out)
    check_disk(out, sum(info.bytes for info in layout) * len(recipes))
    candidates = []
    try:
        for number, recipe in enumerate(recipes):
            part = fresh_part(out, recipe)
            _run(recipe, configuration(recipe, base, tuned, settings, dtype), part, settings, dtype)
            sums = measure(part, recipe.id, mapped, layout)
            candidates.append(complete(part, recipe, weights_digest(part), sums, base, parents))
            if on_progress:
                on_progress(number + 1, len(recipes), recipe.id)
    finally:
        remove_parts(out)
    return candidates


def configuration(recipe: Recipe, base: Path, tuned: Path, settings: MergeSettings, dtype: str) -> dict[str, Any]:
    """Return mergekit's configuration of the same merge: computed in fp32, written in the base's dtype."""
    models = [tuned, *settings.tuned_too] if recipe.operator in SEVERAL else [tuned]
    parameters: dict[str, dict[str, Any]] = {
        "slerp": {"t": recipe.value},
        "task_arithmetic": {"weight": recipe.value},
        "soup": {"weight": recipe.value / len(models)},
        "ties": {"density": recipe.value, "weight": 1.0},
        "dare": {"density": 1 - recipe.value, "weight": 1.0},
        "dare_ties": {"density": 1 - recipe.value, "weight": 1.0},
    }
    own = parameters[recipe.operator]
    whole: dict[str, Any] = {
        "merge_method": METHODS[recipe.operator],
        "base_model": str(base.resolve()),
        "dtype": "float32",
        "out_dtype": dtype,
        "parameters": {"normalize": recipe.operator == "dare_ties"},
    }
    named = [str(model.resolve()) for model in models]
    if recipe.operator == "slerp":
        return whole | {"models": [{"model": name} for name in named], "parameters": own}
    return whole | {"models": [{"model": name, "parameters": own} for name in named]}


def measure(folder: Path, candidate: str, parents: Parents, layout: Sequence[TensorInfo]) -> dict[str, Sums]:
    """Return the sums of written weights by tensor.

    Raises PermanentError where tensors are not those of the base, or a value is beyond the range of its dtype.
    """
    from iar.methods.merge_blocks import BLOCK_ELEMENTS, paired_blocks
    from iar.methods.merge_facts import sums_of

    written = MappedTensors(folder)
    if written.info != {info.name: info for info in layout}:
        raise PermanentError(f"{folder}: mergekit wrote other tensors than the base model has; set engine to stream")
    sums: dict[str, Sums] = {}
    with one_torch_thread():
        for info in layout:
            merged, whole = written.flat(info.name), Sums()
            for start, first, second in paired_blocks(parents.base.flat(info.name), parents.tuned[0].flat(info.name)):
                delta = second - first
                whole += sums_of(merged[start : start + BLOCK_ELEMENTS], first, delta, float(delta @ delta))
            check_in_range(candidate, info, whole)
            sums[info.name] = whole
            written.release(info.name)
            parents.release(info.name)
    return sums


def _one_dtype(layout: Sequence[TensorInfo], base: Path) -> str:
    dtypes = {info.dtype for info in layout}
    if len(dtypes) > 1:
        names = " and ".join(sorted(dtypes))
        raise UserError(f"{base}: has tensors in {names}, mergekit writes one dtype; set recover.engine to stream")
    return TORCH_NAMES[dtypes.pop()]


def _run(recipe: Recipe, config: dict[str, Any], part: Path, settings: MergeSettings, dtype: str) -> None:
    """Run mergekit's command, then leave in `part` its weights alone."""
    part.mkdir()
    made, file = part / "mergekit", part / "mergekit_config.yml"
    file.write_text(json.dumps(config, indent=1), encoding="utf-8")  # JSON is YAML
    element = next(size for name, size in ELEMENT_BYTES.items() if TORCH_NAMES[name] == dtype)
    shard = max(1, int(settings.shard_bytes / element))
    command = [sys.executable, "-m", MODULE, str(file), str(made), "--quiet", "--no-copy-tokenizer"]
    command += ["--no-write-model-card", "--out-shard-size", str(shard), "--random-seed", str(recipe.seed)]
    command += ["--device", settings.device] if settings.device != "cpu" else []
    command += ["--num-threads", str(settings.threads)] if settings.threads else []
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = " / ".join(done.stderr.strip().splitlines()[-LAST_LINES:])
        raise PermanentError(f"{recipe.id}: mergekit ended with exit code {done.returncode}: {said}")
    for path in [*made.glob("*.safetensors"), *made.glob(INDEX_NAME)]:
        path.rename(part / path.name)
    for path in sorted(made.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    made.rmdir()
