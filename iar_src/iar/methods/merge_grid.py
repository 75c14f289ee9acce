"""The fixed grid of merges: which operator with which value of its one hyper-parameter."""

from dataclasses import dataclass

from iar.config import RecoverSection


@dataclass(frozen=True)
class Recipe:
    """What rebuilds a candidate from theta_0 and theta_IA, bit for bit."""

    id: str
    operator: str
    parameter: str
    value: float
    seed: int


# operator, its hyper-parameter, the letter of that in an id, the run file's field of values; in grid order
GRID_ROWS = (
    ("slerp", "t", "t", "slerp_t"),
    ("task_arithmetic", "weight", "w", "task_arithmetic_weight"),
    ("ties", "density", "d", "ties_density"),
    ("dare", "drop", "p", "dare_drop"),
)


def grid(recover: RecoverSection, seed: int) -> list[Recipe]:
    """Return the recipes in grid order; ids read `slerp-t0.2`, `task_arithmetic-w0.3`, `ties-d0.3`, `dare-p0.1`."""
    return [
        Recipe(f"{operator}-{letter}{value:g}", operator, parameter, value, seed)
        for operator, parameter, letter, field in GRID_ROWS
        for value in getattr(recover, field)
    ]
