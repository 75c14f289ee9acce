"""Score tables for the selection rule: a candidate as D, three general metrics and a hyper-parameter."""

from iar.records import Candidate, ItemScore, ModelScores, SuiteScore

Row = tuple[str, float, tuple[float, float, float], float]
"""id, D, (IFEval, MMLU, MSBench), hyper-parameter; points."""


def model_scores(
    model: str, domain: float, general: tuple[float, float, float], split: str = "validation"
) -> ModelScores:
    """The scores of one model; G is the mean of the three."""
    named = {"domain": domain, "ifeval": general[0], "mmlu": general[1], "msbench": general[2]}
    suites = tuple(SuiteScore(name, points, points - 2, points + 2, 100, 0) for name, points in named.items())
    mean = sum(general) / 3
    return ModelScores(model, split, f"digest-{model}", suites, domain, mean, mean - 1, mean + 1)


def item_scores(scores: ModelScores, count: int = 4) -> list[ItemScore]:
    """Items of every suite whose mean is the model's score, all alike, so that every resample has that mean."""
    return [
        ItemScore(scores.model, suite.suite, f"{suite.suite}-{number}", suite.points / 100, "")
        for suite in scores.suites
        for number in range(count)
    ]


def candidate(model: str, value: float = 0.3, duplicate_of: str = "", digest: str = "") -> Candidate:
    """A grid entry; its content is its own unless `digest` says otherwise."""
    digest = digest or f"digest-{model}"
    return Candidate(model, "ties", "density", value, 17, digest, 0.5, 1.0, 1.0, duplicate_of)


def table(*rows: Row) -> tuple[list[ModelScores], list[Candidate]]:
    """Scores and grid of a table, in its order."""
    return [model_scores(name, domain, general) for name, domain, general, _ in rows], [
        candidate(name, value) for name, _, _, value in rows
    ]
