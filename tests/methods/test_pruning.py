"""What pruning would have lost: the rule on the best few of a ranking, against the pick of all."""

from iar.methods.pruning import pruning_losses
from iar.methods.selection import Rule
from iar.records import PruningLoss
from tests.methods.score_tables import model_scores, table

RULE, VANILLA = Rule(1.0), model_scores("vanilla", 40.0, (30.0, 30.0, 30.0))


def test_each_number_of_candidates_has_its_own_pick_and_loss() -> None:
    scores, grid = table(
        ("best", 60.0, (33.0, 33.0, 33.0), 0.3),
        ("weak", 10.0, (90.0, 90.0, 90.0), 0.3),
        ("second", 55.0, (42.0, 42.0, 42.0), 0.3),
    )
    assert pruning_losses(scores, VANILLA, grid, RULE, ["weak", "second", "best"], "best") == [
        PruningLoss(1, "", None, None),
        PruningLoss(2, "second", 5.0, -9.0),
        PruningLoss(3, "best", 0.0, 0.0),
    ]


def test_without_any_pick_there_is_nothing_to_lose() -> None:
    scores, grid = table(("a", 10.0, (90.0, 90.0, 90.0), 0.3))
    assert pruning_losses(scores, VANILLA, grid, RULE, ["a"], "") == [PruningLoss(1, "", None, None)]
