import re

import pytest
from pydantic import ValidationError

from iar.config import RecoverSection, RunFile
from iar.methods.merge_grid import Recipe, grid
from iar.records import TensorInformation


def test_the_default_grid_has_twelve_recipes_in_the_fixed_order() -> None:
    assert [recipe.id for recipe in grid(RecoverSection(), seed=17)] == [
        "slerp-t0.2",
        "slerp-t0.3",
        "slerp-t0.4",
        "task_arithmetic-w0.3",
        "task_arithmetic-w0.5",
        "task_arithmetic-w0.7",
        "ties-d0.3",
        "ties-d0.5",
        "ties-d0.7",
        "dare-p0.1",
        "dare-p0.3",
        "dare-p0.5",
    ]


def test_a_recipe_carries_operator_parameter_value_and_seed() -> None:
    recipes = grid(RecoverSection(ties_density=(1.0,)), seed=3)
    assert recipes[6] == Recipe("ties-d1", "ties", "density", 1.0, 3)


def test_an_old_run_file_keeps_its_identity() -> None:
    whole = {"run": {"name": "x"}, "documents": {"path": "x"}}
    assert set(RunFile.model_validate(whole).deciding()["recover"]) == {
        "slerp_t",
        "task_arithmetic_weight",
        "ties_density",
        "dare_drop",
    }
    all_kept = RunFile.model_validate(whole | {"recover": {"keep": "all"}})
    assert all_kept.digest == RunFile.model_validate(whole).digest
    assert RunFile.model_validate_json(all_kept.canonical()).recover.keep == "all"


EXTRAS = {
    "layer_weights": {"late": {"2-9": 0.25, "10-19": 0.75, "rest": 0.5}, "early": {"0-3": 1.0}},
    "tuned_too": ["a"],
    "soup_weight": [0.5],
    "dare_ties_drop": [0.3],
}


def test_extras_follow_the_twelve_and_come_through_the_canonical_text() -> None:
    file = RunFile.model_validate({"run": {"name": "x"}, "documents": {"path": "x"}, "recover": EXTRAS})
    again = RunFile.model_validate_json(file.canonical())
    assert again.digest == file.digest
    recipes = grid(again.recover, seed=17)
    assert recipes == grid(file.recover, seed=17)
    assert [recipe.id for recipe in recipes[12:]] == [
        "dare_ties-p0.3",
        "soup-w0.5",
        "layer_weights-early",
        "layer_weights-late",
    ]
    late = recipes[-1]
    assert [late.weight_of(block) for block in (None, 0, 2, 9, 10, 19, 20)] == [0.5, 0.5, 0.25, 0.25, 0.75, 0.75, 0.5]
    assert late.value == 0.5
    assert recipes[-2].weight_of(None) == 0.0


def test_a_fisher_recipe_carries_the_weight_of_each_tensor() -> None:
    found = [TensorInformation("a", 1, 1.0, 3.0), TensorInformation("b", 1, 3.0, 1.0)]
    named, measured = (
        grid(RecoverSection(fisher_weight=(0.5,)), seed=17, information=known)[-1] for known in ([], found)
    )
    assert measured == Recipe("fisher-w0.5", "fisher", "weight", 0.5, 17, (("a", 0.75), ("b", 0.25)))
    assert (named.id, named.layers) == (measured.id, ())
    assert [measured.weight_in(name) for name in "abc"] == [0.75, 0.25, 0.5]


SETS = {"newer": [0.3, 0.7], "even": [0.5, 0.5]}


def test_weights_for_document_sets_belong_to_a_run_on_another() -> None:
    whole = {"run": {"name": "x", "on": f"first-0123456789@{'a' * 64}"}, "documents": {"path": "x"}}
    file = RunFile.model_validate(whole | {"recover": {"set_weights": SETS}})
    assert RunFile.model_validate_json(file.canonical()).digest == file.digest
    even, newer = grid(file.recover, seed=17)[12:]
    assert even == Recipe("set_weights-even", "set_weights", "mean weight", 0.5, 17, (("1", 0.5), ("2", 0.5)))
    assert (newer.id, newer.layers) == ("set_weights-newer", (("1", 0.3), ("2", 0.7)))
    with pytest.raises(ValidationError, match=r"recover\.set_weights weighs document sets, and without another run"):
        RunFile.model_validate(whole | {"run": {"name": "x"}, "recover": {"set_weights": SETS}})


REFUSED = {
    "range": ({"layer_weights": {"a": {"3": 0.1}}}, "'3' is no range of blocks; write first-last such as 0-14"),
    "overlap": ({"layer_weights": {"a": {"0-4": 0.1, "4-5": 0.2}}}, "4-5 is empty or overlaps another range"),
    "empty table": ({"layer_weights": {"a": {}}}, "a names no blocks; give at least one range"),
    "name": ({"layer_weights": {"A b": {"rest": 0.1}}}, "'A b' is no name; write at most 21 lower case letters"),
    "soup of one": ({"soup_weight": [1.0]}, "soup_weight needs further checkpoints; name their folders in tuned_too"),
    "unused": ({"tuned_too": ["a"]}, "tuned_too is used by soup_weight and dare_ties_drop alone"),
    "one set": ({"set_weights": {"a": [0.3]}}, "a has 1 weights; give one a document set, the oldest first"),
    "name of sets": ({"set_weights": {"A b": [0.3, 0.7]}}, "'A b' is no name; write at most 21 lower case letters"),
    "sets and mergekit": (
        {"set_weights": {"a": [0.3, 0.7]}, "engine": "mergekit"},
        "engine mergekit does not take set_weights",
    ),
    "fisher and mergekit": (
        {"fisher_weight": [0.5], "engine": "mergekit"},
        "engine mergekit does not take fisher_weight",
    ),
    "engine": (EXTRAS | {"engine": "mergekit"}, "engine mergekit does not take layer_weights"),
    "nothing": (
        {"slerp_t": [], "task_arithmetic_weight": [], "ties_density": [], "dare_drop": []},
        "every list is empty, so nothing would be merged",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_grid_that_cannot_be_made_is_refused(case: str) -> None:
    recover, message = REFUSED[case]
    with pytest.raises(ValidationError, match=re.escape(message)):
        RecoverSection.model_validate(recover)
