"""mergekit's own command as the engine, on tiny models."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from iar.config import RecoverSection, RunFile
from iar.errors import PermanentError, UserError
from iar.methods.merge_grid import Recipe, grid
from iar.records import Candidate, read_records
from iar.services.checkpoints import weights_digest
from iar.services.merge_mergekit import configuration, merge_with_mergekit
from iar.services.merge_stream import MergeSettings, merge_candidates
from iar.services.workspace import Context
from iar.stages import merge_candidate
from tests.services.merge_parents import EMBEDDING, Tensors, derive, noisy

pytest.importorskip("mergekit")

RECIPES = {recipe.operator: recipe for recipe in grid(RecoverSection(), seed=17)}
PARENTS = {"base": "b", "tuned": "t"}
NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def parents(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tiny_model_folder, derive(tiny_model_folder, tmp_path_factory.mktemp("parents") / "tuned", noisy)


@pytest.mark.slow
def test_both_engines_make_the_same_folders(parents: tuple[Path, Path], tmp_path: Path) -> None:
    recipes = [RECIPES[name] for name in ("slerp", "ties")]
    ours = merge_candidates(*parents, recipes, tmp_path / "ours", PARENTS)
    theirs = merge_with_mergekit(*parents, recipes, tmp_path / "theirs", PARENTS)
    for mine, other in zip(ours, theirs, strict=True):
        one, two = tmp_path / "ours" / mine.id, tmp_path / "theirs" / mine.id
        extra = {"mergekit_config.yml"}
        assert {path.name for path in two.iterdir()} - extra == {path.name for path in one.iterdir()}
        expected = load_file(one / "model.safetensors")
        for name, value in load_file(two / "model.safetensors").items():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)
        assert (other.id, other.operator, other.value, other.seed) == (mine.id, mine.operator, mine.value, mine.seed)
        assert other.digest == weights_digest(two)
        assert other.distance_to_base == pytest.approx(mine.distance_to_base, abs=1e-4)
        assert other.distance_to_tuned == pytest.approx(mine.distance_to_tuned, abs=1e-4)


@pytest.mark.slow
def test_a_soup_is_the_same_from_both_engines(parents: tuple[Path, Path], tmp_path: Path) -> None:
    other = derive(parents[0], tmp_path / "other", lambda tensors: {name: v * 1.01 for name, v in tensors.items()})
    recipe = soup_of_two()
    settings = MergeSettings(tuned_too=(other,), shard_bytes=1e5)
    merge_candidates(*parents, [recipe], tmp_path / "ours", PARENTS, None, settings)
    merge_with_mergekit(*parents, [recipe], tmp_path / "theirs", PARENTS, None, settings)
    expected = {}
    for path in (tmp_path / "ours" / recipe.id).glob("*.safetensors"):
        expected |= load_file(path)
    for path in (tmp_path / "theirs" / recipe.id).glob("*.safetensors"):
        for name, value in load_file(path).items():
            torch.testing.assert_close(value, expected.pop(name), rtol=1e-5, atol=1e-7)
    assert not expected


def test_a_base_of_two_dtypes_is_refused_before_anything_is_written(parents: tuple[Path, Path], tmp_path: Path) -> None:
    def mixed(tensors: Tensors) -> Tensors:
        return tensors | {EMBEDDING: tensors[EMBEDDING].bfloat16()}

    base = derive(parents[0], tmp_path / "base", mixed)
    with pytest.raises(UserError, match="has tensors in BF16 and F32, mergekit writes one dtype; set"):
        merge_with_mergekit(base, parents[1], [RECIPES["ties"]], tmp_path / "out", PARENTS)
    assert not (tmp_path / "out").exists()


def soup_of_two() -> Recipe:
    lists = {"slerp_t": (), "task_arithmetic_weight": (), "ties_density": (), "dare_drop": ()}
    (recipe,) = grid(RecoverSection(**lists, soup_weight=(0.8,), tuned_too=("x",)), 17)
    return recipe


REFUSED = {
    "not finite": (
        lambda tensors: tensors | {NORM: torch.full_like(tensors[NORM], float("nan"))},
        PermanentError,
        f"other: tensor '{NORM}' holds nan at flat index 0",
    ),
    "another shape": (
        lambda tensors: tensors | {NORM: tensors[NORM][:-1].clone()},
        UserError,
        rf"other: tensor '{NORM}' has shape \[63\]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_further_checkpoints_are_looked_at_before_anything_is_written(
    case: str, parents: tuple[Path, Path], tmp_path: Path
) -> None:
    change, error, told = REFUSED[case]
    other = derive(parents[0], tmp_path / "other", change)
    with pytest.raises(error, match=told):
        merge_with_mergekit(
            *parents, [soup_of_two()], tmp_path / "out", PARENTS, None, MergeSettings(tuned_too=(other,))
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_merge_beyond_the_range_of_the_output_is_no_candidate(parents: tuple[Path, Path], tmp_path: Path) -> None:
    def half(tensors: Tensors) -> Tensors:
        return {name: value.half() for name, value in tensors.items()}

    base = derive(parents[0], tmp_path / "base", half)
    tuned = derive(base, tmp_path / "tuned", lambda t: t | {NORM: torch.full_like(t[NORM], 60_000)})
    with pytest.raises(PermanentError, match=f"dare-p0.5: tensor '{NORM}' exceeds the range of F16"):
        merge_with_mergekit(base, tuned, [RECIPES["dare"]], tmp_path / "out", PARENTS)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_a_candidate_is_built_again_with_the_same_bits(parents: tuple[Path, Path], tmp_path: Path) -> None:
    # what `keep: pick` relies on: DARE draws its masks anew
    recipes = [RECIPES[name] for name in ("ties", "dare")]
    together = merge_with_mergekit(*parents, recipes, tmp_path / "all", PARENTS)
    (alone,) = merge_with_mergekit(*parents, recipes[1:], tmp_path / "one", PARENTS)
    assert alone == together[1]


@pytest.mark.slow
def test_a_run_file_that_names_mergekit_has_its_candidates_from_it(parents: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "align").mkdir()
    (tmp_path / "align" / "checkpoint").symlink_to(parents[1])
    lists = {"slerp_t": [], "task_arithmetic_weight": [], "ties_density": [0.5], "dare_drop": []}
    recover = lists | {"engine": "mergekit"}
    run_file = RunFile.model_validate({"run": {"name": "t"}, "documents": {"path": "x"}, "recover": recover})
    inputs = {"base": parents[0], "tuned": tmp_path / "align"}
    merge_candidate.run(run_file, inputs, tmp_path / "out", Context.for_tests(tmp_path / "state"))
    (candidate,) = read_records(tmp_path / "out" / "candidates.jsonl", Candidate)
    assert (tmp_path / "out" / candidate.id / "mergekit_config.yml").is_file()
    assert candidate.digest == weights_digest(tmp_path / "out" / candidate.id) and candidate.changed_share > 0


def test_what_mergekit_says_of_its_failure_is_passed_on(parents: tuple[Path, Path], tmp_path: Path) -> None:
    broken = derive(parents[0], tmp_path / "tuned", noisy)
    (broken / "config.json").write_text("{}")
    with pytest.raises(PermanentError, match=r"slerp-t0\.4: mergekit ended with exit code 1: .*Error"):
        merge_with_mergekit(parents[0], broken, [RECIPES["slerp"]], tmp_path / "out", PARENTS)
    assert list((tmp_path / "out").iterdir()) == []


def test_the_configuration_names_the_recipe_in_mergekits_words(parents: tuple[Path, Path]) -> None:
    config = configuration(RECIPES["dare"], *parents, MergeSettings(), "bfloat16")
    assert config["merge_method"] == "dare_linear"
    assert config["out_dtype"] == "bfloat16"
    assert config["models"][0]["parameters"] == {"density": 0.5, "weight": 1.0}
