import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from iar.config import RecoverSection
from iar.errors import PermanentError, UserError
from iar.methods import merging
from iar.methods.merge_grid import Recipe, grid
from iar.records import LayerFacts, read_records
from iar.services import merge_writers
from iar.services.checkpoints import weights_digest
from iar.services.merge_stream import MergeSettings, merge_candidates
from tests.services.merge_parents import EMBEDDING, Tensors, derive, noisy, shard

RECIPES = grid(RecoverSection(), seed=17)
PARENTS = {"base": "b", "tuned": "t"}


def bf16(tensors: Tensors) -> Tensors:
    return {name: value.to(torch.bfloat16) for name, value in tensors.items()}


def untied(tensors: Tensors) -> Tensors:
    return tensors | {"lm_head.weight": tensors[EMBEDDING] * 2}


@pytest.fixture(scope="module")
def parents(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("parents")
    base = derive(tiny_model_folder, folder / "base", bf16, dtype="bfloat16")
    return base, derive(base, folder / "tuned", noisy)


def expected(recipe: Recipe, name: str, theta_0: torch.Tensor, theta_1: torch.Tensor) -> torch.Tensor:
    if recipe.operator == "dare":
        return merging.dare(theta_0, theta_1, recipe.value, recipe.seed, name)
    merge = {"slerp": merging.slerp, "task_arithmetic": merging.task_arithmetic, "ties": merging.ties}
    return merge[recipe.operator](theta_0, theta_1, recipe.value)


def test_twelve_candidates_equal_the_operators_tensor_by_tensor(parents: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = parents
    candidates = merge_candidates(base, tuned, RECIPES, tmp_path, PARENTS)
    theta_0, theta_1 = load_file(base / "model.safetensors"), load_file(tuned / "model.safetensors")
    assert [candidate.id for candidate in candidates] == [recipe.id for recipe in RECIPES]
    for recipe, candidate in zip(RECIPES, candidates, strict=True):
        written = load_file(tmp_path / recipe.id / "model.safetensors")
        assert written.keys() == theta_0.keys()
        for name, value in written.items():
            merged = expected(recipe, name, theta_0[name], theta_1[name]).to(torch.bfloat16)
            assert torch.equal(value, merged), (recipe.id, name)
        assert candidate.digest == weights_digest(tmp_path / recipe.id)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(recipe.id for recipe in RECIPES)


def test_the_facts_are_those_of_the_written_weights(parents: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = parents
    (candidate,) = merge_candidates(base, tuned, RECIPES[6:7], tmp_path, PARENTS)
    flat_0, flat_1, flat_c = (
        torch.cat([value.flatten().double() for _, value in sorted(load_file(folder / "model.safetensors").items())])
        for folder in (base, tuned, tmp_path / candidate.id)
    )
    length = float((flat_1 - flat_0).norm())
    assert candidate.changed_share == pytest.approx(float((flat_c != flat_0).double().mean()), abs=1e-6)
    assert candidate.distance_to_base == pytest.approx(float((flat_c - flat_0).norm()) / length, abs=1e-5)
    assert candidate.distance_to_tuned == pytest.approx(float((flat_c - flat_1).norm()) / length, abs=1e-5)


def test_a_candidate_is_a_model_that_transformers_loads_tied(parents: tuple[Path, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    merge_candidates(*parents, RECIPES[:1], tmp_path, PARENTS)
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "slerp-t0.2", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.dtype == torch.bfloat16
    assert AutoTokenizer.from_pretrained(tmp_path / "slerp-t0.2").chat_template


def test_files_beside_the_weights_come_from_the_base(parents: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = parents
    other = derive(tuned, tmp_path / "tuned", lambda tensors: tensors, max_position_embeddings=9)
    (other / "optimizer.pt").write_bytes(b"x")
    merge_candidates(base, other, RECIPES[:1], tmp_path / "out", PARENTS)
    written = tmp_path / "out" / "slerp-t0.2"
    assert (written / "config.json").read_bytes() == (base / "config.json").read_bytes()
    assert (written / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert not (written / "optimizer.pt").exists()
    record = json.loads((written / "checkpoint.json").read_text())
    assert record["digest"] == weights_digest(written)
    assert record["parents"] == PARENTS


def test_shards_of_either_parent_change_no_bit(parents: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = parents
    whole = merge_candidates(base, tuned, RECIPES, tmp_path / "whole", PARENTS)
    for parent, name in ((base, "base"), (tuned, "tuned")):
        shutil.copytree(parent, tmp_path / name)
        shard(tmp_path / name)
    assert merge_candidates(tmp_path / "base", tmp_path / "tuned", RECIPES, tmp_path / "out", PARENTS) == whole


def test_one_recipe_alone_rebuilds_the_same_candidate(parents: tuple[Path, Path], tmp_path: Path) -> None:
    together = merge_candidates(*parents, RECIPES, tmp_path / "all", PARENTS)
    alone = [merge_candidates(*parents, [recipe], tmp_path / "one", PARENTS)[0] for recipe in RECIPES]
    assert alone == together


def test_a_seed_changes_dare_and_nothing_else(parents: tuple[Path, Path], tmp_path: Path) -> None:
    one = merge_candidates(*parents, RECIPES, tmp_path / "one", PARENTS)
    two = merge_candidates(*parents, grid(RecoverSection(), seed=18), tmp_path / "two", PARENTS)
    changed = {a.operator for a, b in zip(one, two, strict=True) if a.digest != b.digest}
    assert changed == {"dare"}


def test_the_ends_of_the_grid_are_the_parents(tiny_model_folder: Path, tmp_path: Path) -> None:
    tuned = derive(tiny_model_folder, tmp_path / "tuned", noisy)
    ends = RecoverSection(
        slerp_t=(0.0, 1.0), task_arithmetic_weight=(0.0, 1.0), ties_density=(0.0, 1.0), dare_drop=(0.0,)
    )
    candidates = merge_candidates(tiny_model_folder, tuned, grid(ends, 1), tmp_path / "out", PARENTS)
    at_base = [candidate.id for candidate in candidates if candidate.changed_share == 0]
    at_tuned = [candidate.id for candidate in candidates if candidate.distance_to_tuned < 1e-5]
    assert at_base == ["slerp-t0", "task_arithmetic-w0", "ties-d0"]
    assert at_tuned == ["slerp-t1", "task_arithmetic-w1", "ties-d1", "dare-p0"]
    assert len({candidate.digest for candidate in candidates[2:] if candidate.id in at_tuned}) == 1


def test_equal_parents_give_the_base(parents: tuple[Path, Path], tmp_path: Path) -> None:
    candidates = merge_candidates(parents[0], parents[0], RECIPES, tmp_path, PARENTS)
    assert {(c.changed_share, c.distance_to_base, c.distance_to_tuned) for c in candidates} == {(0.0, 0.0, 0.0)}


def test_an_untied_head_is_a_tensor_like_others(tiny_model_folder: Path, tmp_path: Path) -> None:
    base = derive(tiny_model_folder, tmp_path / "base", untied, tie_word_embeddings=False)
    tuned = derive(base, tmp_path / "tuned", noisy)
    merge_candidates(base, tuned, RECIPES[3:4], tmp_path / "out", PARENTS)
    written = load_file(tmp_path / "out" / RECIPES[3].id / "model.safetensors")
    head_0, head_1 = (load_file(folder / "model.safetensors")["lm_head.weight"] for folder in (base, tuned))
    assert torch.equal(written["lm_head.weight"], merging.task_arithmetic(head_0, head_1, 0.3))


def test_a_redundant_tied_head_is_left_out(parents: tuple[Path, Path], tmp_path: Path) -> None:
    # written twice under ZeRO: DARE would draw two masks, and head and embedding would part
    base, tuned = parents
    with_head = derive(
        tuned, tmp_path / "tuned", lambda tensors: tensors | {"lm_head.weight": tensors[EMBEDDING].clone()}
    )
    plain = merge_candidates(base, tuned, RECIPES, tmp_path / "plain", PARENTS)
    assert merge_candidates(base, with_head, RECIPES, tmp_path / "out", PARENTS) == plain
    assert "lm_head.weight" not in load_file(tmp_path / "out" / RECIPES[0].id / "model.safetensors")


def many(folder: Path) -> Tensors:
    files = sorted(folder.glob("*.safetensors"))
    return {name: value for path in files for name, value in load_file(path).items()}


def test_output_in_shards_is_the_same_model_with_an_index(parents: tuple[Path, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    whole = merge_candidates(*parents, RECIPES[:1], tmp_path / "whole", PARENTS)
    settings = MergeSettings(shard_bytes=60_000)
    (sharded,) = merge_candidates(*parents, RECIPES[:1], tmp_path / "out", PARENTS, None, settings)
    folder, expected = tmp_path / "out" / sharded.id, many(tmp_path / "whole" / sharded.id)
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    written = many(folder)
    assert written.keys() == expected.keys() and all(torch.equal(written[name], expected[name]) for name in expected)
    assert replace(sharded, digest=whole[0].digest) == whole[0]
    assert sharded.digest == weights_digest(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in expected.values())
    assert index["weight_map"].keys() == expected.keys()
    _, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    # and it is a parent like others
    (again,) = merge_candidates(folder, folder, RECIPES[3:4], tmp_path / "again", PARENTS)
    assert again.changed_share == 0


def test_threads_change_no_bit_and_no_fact(parents: tuple[Path, Path], tmp_path: Path) -> None:
    made = [
        merge_candidates(*parents, RECIPES, tmp_path / str(threads), PARENTS, None, MergeSettings(threads=threads))
        for threads in (1, 2, 7)
    ]
    assert made[0] == made[1] == made[2]
    layers = {(tmp_path / str(threads) / "ties-d0.5" / "layers.jsonl").read_bytes() for threads in (1, 2, 7)}
    assert len(layers) == 1


def test_a_gpu_that_is_not_there_is_refused(parents: tuple[Path, Path], tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match=r"platform\.merge_device: cuda, but torch finds no GPU here; set it to cpu"):
        merge_candidates(*parents, RECIPES, tmp_path / "out", PARENTS, None, MergeSettings(device="cuda"))
    assert not (tmp_path / "out").exists()


def test_layer_weights_reach_their_blocks_alone(parents: tuple[Path, Path], tmp_path: Path) -> None:
    recover = RecoverSection(
        slerp_t=(), task_arithmetic_weight=(), ties_density=(), dare_drop=(), layer_weights={"late": {"1-1": 0.5}}
    )
    (candidate,) = merge_candidates(*parents, grid(recover, 17), tmp_path, PARENTS)
    assert (candidate.id, candidate.value, candidate.layers) == ("layer_weights-late", 0.5, (("1-1", 0.5),))
    theta_0, theta_1, merged = many(parents[0]), many(parents[1]), many(tmp_path / candidate.id)
    for name, value in merged.items():
        weight = 0.5 if ".layers.1." in name else 0.0
        assert torch.equal(value, merging.task_arithmetic(theta_0[name], theta_1[name], weight).bfloat16()), name
    facts = {one.group: one for one in read_records(tmp_path / candidate.id / "layers.jsonl", LayerFacts)}
    assert facts["0"].changed_share == facts["outside"].changed_share == 0 < facts["1"].changed_share
    assert facts["1"].distance_to_base == pytest.approx(0.5, abs=0.01)
    assert sum(facts[group].elements for group in ("outside", "0", "1")) == sum(v.numel() for v in theta_0.values())


def test_a_soup_and_dare_ties_merge_further_checkpoints(parents: tuple[Path, Path], tmp_path: Path) -> None:
    other = derive(parents[0], tmp_path / "other", lambda tensors: {name: v * 1.5 for name, v in tensors.items()})
    lists = {"slerp_t": (), "task_arithmetic_weight": (), "ties_density": (), "dare_drop": (0.3,)}
    recover = RecoverSection(**lists, soup_weight=(1.0,), dare_ties_drop=(0.3,), tuned_too=(str(other),))
    dare, dare_ties, soup = grid(recover, 17)
    settings = MergeSettings(tuned_too=(other,))
    merge_candidates(*parents, [dare, dare_ties, soup], tmp_path / "out", PARENTS, None, settings)
    theta_0, first, second = many(parents[0]), many(parents[1]), many(other)
    merged = many(tmp_path / "out" / soup.id)
    for name, value in theta_0.items():
        mean = ((first[name].float() - value.float()) + (second[name].float() - value.float())) * 0.5
        assert torch.equal(merged[name], (mean + value.float()).bfloat16()), name
    (alone,) = merge_candidates(*parents, [dare_ties], tmp_path / "alone", PARENTS)
    (plain,) = merge_candidates(*parents, [dare], tmp_path / "plain", PARENTS)
    assert alone.digest == plain.digest, "with one checkpoint no sign stands against another"


def test_further_checkpoints_must_belong_to_the_base_too(parents: tuple[Path, Path], tmp_path: Path) -> None:
    other = derive(parents[0], tmp_path / "other", without(NORM))
    recipe = Recipe("soup-w1", "soup", "weight", 1.0, 17)
    with pytest.raises(UserError, match=rf"other: tensor '{NORM}' is missing"):
        merge_candidates(*parents, [recipe], tmp_path / "out", PARENTS, None, MergeSettings(tuned_too=(other,)))


def of_sets(*weights: float) -> Recipe:
    layers = tuple((str(number), weight) for number, weight in enumerate(weights, 1))
    return Recipe("set_weights-newer", "set_weights", "mean weight", 0.5, 17, layers)


def test_each_document_set_is_merged_by_its_weight(tiny_model_folder: Path, tmp_path: Path) -> None:
    first = derive(tiny_model_folder, tmp_path / "first", noisy)
    second = derive(first, tmp_path / "second", lambda tensors: {name: v * 1.25 for name, v in tensors.items()})
    settings = MergeSettings(earlier=(first,))
    (made,) = merge_candidates(tiny_model_folder, second, [of_sets(0.2, 0.8)], tmp_path, PARENTS, None, settings)
    theta_0, theta_1, theta_2, merged = map(many, (tiny_model_folder, first, second, tmp_path / made.id))
    for name, value in theta_0.items():
        expected = value + 0.2 * (theta_1[name] - value) + 0.8 * (theta_2[name] - theta_1[name])
        torch.testing.assert_close(merged[name], expected, rtol=1e-5, atol=1e-6)
    # and beside the twelve nobody else's bits change
    plain = merge_candidates(tiny_model_folder, second, RECIPES, tmp_path / "plain", PARENTS)
    beside = [*RECIPES, of_sets(0.2, 0.8)]
    both = merge_candidates(tiny_model_folder, second, beside, tmp_path / "both", PARENTS, None, settings)
    assert both == [*plain, made]


def merge_sets(parents: tuple[Path, Path], earlier: Path, out: Path, *weights: float) -> None:
    merge_candidates(*parents, [of_sets(*weights)], out, PARENTS, None, MergeSettings(earlier=(earlier,)))


def test_earlier_checkpoints_are_looked_at_too(parents: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"set_weights-newer has 3 weights, and with the run .* are 2 document sets"):
        merge_sets(parents, parents[1], out, 0.1, 0.2, 0.3)
    lacking = derive(parents[1], tmp_path / "lacking", without(NORM))
    with pytest.raises(UserError, match=f"lacking: tensor '{NORM}' is missing"):
        merge_sets(parents, lacking, out, 0.1, 0.2)
    assert not out.exists()
    torn = derive(parents[1], tmp_path / "torn", lambda t: t | {NORM: torch.full_like(t[NORM], torch.inf)})
    with pytest.raises(PermanentError, match=f"torn: tensor '{NORM}' holds inf"):
        merge_sets(parents, torn, out, 0.1, 0.2)
    assert list(out.iterdir()) == []


def without(name: str) -> "object":
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


NORM = "model.norm.weight"
REFUSED = {
    "missing": (without(NORM), f"tensor '{NORM}' is missing"),
    "extra": (lambda t: t | {"extra": t[NORM].clone()}, "base: tensor 'extra' is missing, .*tuned has it"),
    "shape": (lambda t: t | {NORM: t[NORM][:-1].clone()}, rf"tensor '{NORM}' has shape \[63\]"),
    "vocabulary": (lambda t: t | {EMBEDDING: t[EMBEDDING][1:].clone()}, f"tensor '{EMBEDDING}' has vocabulary"),
    "head": (untied, f"tensor 'lm_head.weight' differs from '{EMBEDDING}' although the base model ties them"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_checkpoints_that_do_not_belong_together_are_refused(
    case: str, parents: tuple[Path, Path], tmp_path: Path
) -> None:
    change, message = REFUSED[case]
    tuned = derive(parents[0], tmp_path / "tuned", change)
    with pytest.raises(UserError, match=message):
        merge_candidates(parents[0], tuned, RECIPES, tmp_path / "out", PARENTS)
    assert not (tmp_path / "out").exists()


def test_an_untied_base_without_its_head_is_refused(parents: tuple[Path, Path], tmp_path: Path) -> None:
    base = derive(parents[0], tmp_path / "base", lambda tensors: tensors, tie_word_embeddings=False)
    with pytest.raises(UserError, match=r"tensor 'lm_head.weight' is missing and config.json says tie_word_embeddings"):
        merge_candidates(base, parents[1], RECIPES, tmp_path / "out", PARENTS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_stops_the_merge_and_leaves_nothing(
    value: float, parents: tuple[Path, Path], tmp_path: Path
) -> None:
    def poisoned(tensors: Tensors) -> Tensors:
        tensors[NORM][5] = value
        return tensors

    tuned = derive(parents[1], tmp_path / "tuned", poisoned)
    with pytest.raises(PermanentError, match=rf"tensor '{NORM}' holds {value} at flat index 5"):
        merge_candidates(parents[0], tuned, RECIPES, tmp_path / "out", PARENTS)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_merge_beyond_the_range_of_the_output_names_tensor_and_candidate(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    def half(tensors: Tensors) -> Tensors:
        return {name: value.to(torch.float16) for name, value in tensors.items()}

    base = derive(tiny_model_folder, tmp_path / "base", half)
    tuned = derive(tiny_model_folder, tmp_path / "tuned", lambda t: t | {NORM: torch.full_like(t[NORM], 60_000)})
    with pytest.raises(PermanentError, match=f"dare-p0.5: tensor '{NORM}' exceeds the range of F16"):
        merge_candidates(base, tuned, [RECIPES[-1]], tmp_path / "out", PARENTS)


def test_another_vocabulary_is_refused_by_token(parents: tuple[Path, Path], tmp_path: Path) -> None:
    base, tuned = parents
    shutil.copytree(tuned, tmp_path / "tuned")
    tokenizer = json.loads((tuned / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "tuned" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=r"another vocabulary than .*: token 'a' has id"):
        merge_candidates(base, tmp_path / "tuned", RECIPES, tmp_path / "out", PARENTS)


def test_another_chat_template_is_refused(parents: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(parents[1], tmp_path / "tuned")
    (tmp_path / "tuned" / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(UserError, match="another chat template than"):
        merge_candidates(parents[0], tmp_path / "tuned", RECIPES, tmp_path / "out", PARENTS)


@pytest.mark.parametrize("step", ["normalizer", "pre_tokenizer"])
def test_a_tokenizer_that_cuts_text_otherwise_is_refused(step: str, parents: tuple[Path, Path], tmp_path: Path) -> None:
    # same words, same merges: the ids of a text differ all the same
    shutil.copytree(parents[1], tmp_path / "tuned")
    path = tmp_path / "tuned" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    letters = {"type": "Split", "pattern": {"Regex": "[a-z]"}, "behavior": "Isolated", "invert": False}
    steps = {
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [letters, tokenizer["pre_tokenizer"]]},
    }
    path.write_text(json.dumps(tokenizer | {step: steps[step]}))
    with pytest.raises(UserError, match=r"tuned: cuts .The harbour of Velm .* into other tokens than .*base: \["):
        merge_candidates(parents[0], tmp_path / "tuned", RECIPES[:1], tmp_path / "out", PARENTS)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_saved_in_another_layout_is_the_same(parents: tuple[Path, Path], tmp_path: Path) -> None:
    # older files: merges as "a b", the template inside tokenizer_config.json; a step of its own, or in a sequence
    shutil.copytree(parents[1], tmp_path / "tuned")
    tokenizer = json.loads((tmp_path / "tuned" / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = [" ".join(merge) for merge in tokenizer["model"]["merges"]]
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [tokenizer["pre_tokenizer"]]}
    (tmp_path / "tuned" / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((tmp_path / "tuned" / "tokenizer_config.json").read_text())
    settings["chat_template"] = (tmp_path / "tuned" / "chat_template.jinja").read_text()
    (tmp_path / "tuned" / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "tuned" / "chat_template.jinja").unlink()
    merge_candidates(parents[0], tmp_path / "tuned", RECIPES[:1], tmp_path / "out", PARENTS)


def test_an_existing_folder_is_replaced_not_mixed(parents: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "slerp-t0.2").mkdir()
    (tmp_path / "slerp-t0.2" / "model-00001-of-00002.safetensors").write_bytes(b"old")
    merge_candidates(*parents, RECIPES[:1], tmp_path, PARENTS)
    assert [path.name for path in (tmp_path / "slerp-t0.2").glob("*.safetensors")] == ["model.safetensors"]


def test_a_small_disk_is_refused_before_anything_is_written(
    parents: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_writers.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(UserError, match=r"the candidates need 0\.0 GB, 0\.0 GB are free; free some"):
        merge_candidates(*parents, RECIPES, tmp_path / "out", PARENTS)
    assert list((tmp_path / "out").iterdir()) == []


def test_progress_ends_at_the_total(parents: tuple[Path, Path], tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []
    merge_candidates(*parents, RECIPES[:1], tmp_path, PARENTS, lambda done, total, note: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0
