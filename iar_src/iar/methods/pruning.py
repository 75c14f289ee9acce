"""What it would have cost to evaluate only the candidates that predict the texts best."""

from collections.abc import Sequence

from iar.methods.selection import Rule, select
from iar.records import Candidate, ModelScores, PruningLoss


def pruning_losses(
    scores: Sequence[ModelScores],
    vanilla: ModelScores,
    grid: Sequence[Candidate],
    rule: Rule,
    ranking: Sequence[str],
    pick: str,
) -> list[PruningLoss]:
    """Return for each number of candidates kept, the best of `ranking`, what the rule would have picked among them.

    `pick` is that of all candidates with scores. Losses are in points on validation; None where one of the two
    picks is none.
    """
    by_model = {one.model: one for one in scores}
    losses = []
    for kept in range(1, len(ranking) + 1):
        left = set(ranking[:kept])
        out = {one.id: "pruned" for one in grid if one.id not in left}
        other = select(scores, vanilla, grid, rule, out).pick
        both = (by_model[pick], by_model[other]) if pick and other else None
        domain = both[0].domain - both[1].domain if both else None
        general = both[0].general - both[1].general if both else None
        losses.append(PruningLoss(kept, other, domain, general))
    return losses
