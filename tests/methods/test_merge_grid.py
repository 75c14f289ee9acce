from iar.config import RecoverSection
from iar.methods.merge_grid import Recipe, grid


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
