"""What the file filter did, a scorer at a time, and what a random choice of as many of each collection would have done.

The baseline keeps the source: of each collection it drops as many documents as the rule does, whichever. What a rule
changes beyond it is the rule's doing, and not that of the mix of collections.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iar.methods.scorers import Calibration, Scorer

DRAWS = 20
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
# Upper bounds of the length classes, in words.
LENGTHS = (50, 100, 200, 400, 800, 1600, 3200, 6400)


@dataclass(frozen=True)
class LengthClass:
    """Documents of a language, of `words_from` to below `words_to` words (0 = no bound): what a scorer says of them."""

    language: str
    words_from: int
    words_to: int
    documents: int
    mean_score: float
    dropped_share: float
    random_dropped_share: float


@dataclass(frozen=True)
class ScorerReport:
    """One scorer over one set of documents. The random figures are means over DRAWS draws; low and high their range.

    quantiles: the least score, 5 %, median, 95 % and the largest. kept_passing: share of the kept that every other
    rule keeps too.
    """

    name: str
    meaning: str
    threshold: str
    origin: str
    calibrations: tuple[Calibration, ...]
    documents: int
    dropped: int
    quantiles: tuple[float, ...]
    kept_words: float
    random_kept_words: float
    random_kept_words_low: float
    random_kept_words_high: float
    kept_score: float
    random_kept_score: float
    kept_passing: float
    random_kept_passing: float
    dropped_by_collection: Mapping[str, int]
    length_response: tuple[LengthClass, ...]


def report(
    scorer: Scorer,
    threshold: float,
    scores: NDArray[np.floating],
    dropped: NDArray[np.bool_],
    others_pass: NDArray[np.bool_],
    words: NDArray[np.int64],
    collections: NDArray[np.int64],
    names: Sequence[str],
    languages: NDArray[np.int64],
    language_names: Sequence[str],
    seed: int,
) -> ScorerReport:
    """Return the report of one scorer; all arrays have a value a document.

    `collections` are indices into `names`, `languages` into `language_names`.
    """
    draws = random_drops(dropped, collections, seed)
    kept_words = [_mean(words[~draw]) for draw in draws]
    return ScorerReport(
        name=scorer.name,
        meaning=scorer.meaning,
        threshold=f"{scorer.keeps} {threshold:g}",
        origin=scorer.origin,
        calibrations=scorer.calibrations,
        documents=len(scores),
        dropped=int(dropped.sum()),
        quantiles=tuple(_rounded(np.quantile(scores, QUANTILES))) if len(scores) else (),
        kept_words=_mean(words[~dropped]),
        random_kept_words=_mean(np.array(kept_words)),
        random_kept_words_low=min(kept_words),
        random_kept_words_high=max(kept_words),
        kept_score=_mean(scores[~dropped]),
        random_kept_score=_mean(np.array([_mean(scores[~draw]) for draw in draws])),
        kept_passing=_mean(others_pass[~dropped]),
        random_kept_passing=_mean(np.array([_mean(others_pass[~draw]) for draw in draws])),
        dropped_by_collection={
            names[index]: int(count)
            for index, count in enumerate(np.bincount(collections[dropped], minlength=len(names)))
            if count
        },
        length_response=tuple(
            one
            for index, language in enumerate(language_names)
            for one in _length_response(scores, dropped, draws, words, languages == index, language)
        ),
    )


def filter_table(reports: Iterable[ScorerReport]) -> str:
    """Return the reports as a Markdown table, the random baseline beside each figure of the rule."""
    rows = [
        "| scorer | kept when | dropped | calibrated on: least, median, largest | here: least, median, largest "
        "| words a kept document: rule, random | kept that pass the other rules: rule, random |",
        "| --- | --- | ---: | --- | --- | --- | --- |",
    ]
    for one in reports:
        here = one.quantiles[::2] or (0.0, 0.0, 0.0)
        rows.append(
            f"| {one.name} | {one.threshold} | {one.dropped} of {one.documents} | {calibrated(one)} "
            f"| {triple(here)} | {one.kept_words:.0f}, {one.random_kept_words:.0f} "
            f"({one.random_kept_words_low:.0f} to {one.random_kept_words_high:.0f}) "
            f"| {one.kept_passing:.1%}, {one.random_kept_passing:.1%} |"
        )
    return "\n".join(rows)


def calibrated(one: ScorerReport) -> str:
    """Return the scores on the texts of the calibrations, a language at a time."""
    return "; ".join(f"{cal.language} {triple((cal.least, cal.median, cal.largest))}" for cal in one.calibrations)


def triple(values: Sequence[float]) -> str:
    """Return three scores as text."""
    return ", ".join(f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in values)


def random_drops(dropped: NDArray[np.bool_], collections: NDArray[np.int64], seed: int) -> list[NDArray[np.bool_]]:
    """Return DRAWS random choices that drop as many documents of each collection as `dropped` does."""
    generator = np.random.default_rng(seed)
    quota = np.bincount(collections[dropped], minlength=int(collections.max(initial=0)) + 1)
    starts = np.concatenate([[0], np.cumsum(np.bincount(collections, minlength=len(quota)))[:-1]])
    draws = []
    for _ in range(DRAWS):
        order = np.lexsort((generator.random(len(dropped)), collections))
        rank = np.arange(len(dropped)) - starts[collections[order]]
        draw = np.zeros(len(dropped), bool)
        draw[order] = rank < quota[collections[order]]
        draws.append(draw)
    return draws


def _length_response(
    scores: NDArray[np.floating],
    dropped: NDArray[np.bool_],
    draws: Sequence[NDArray[np.bool_]],
    words: NDArray[np.int64],
    of_language: NDArray[np.bool_],
    language: str,
) -> list[LengthClass]:
    classes = np.digitize(words, LENGTHS)
    bounds = [0, *LENGTHS, 0]
    return [
        LengthClass(
            language,
            bounds[index],
            bounds[index + 1],
            int(inside.sum()),
            _mean(scores[inside]),
            _mean(dropped[inside]),
            _mean(np.array([draw[inside].mean() for draw in draws])),
        )
        for index in range(len(LENGTHS) + 1)
        if (inside := (classes == index) & of_language).any()
    ]


def _mean(values: NDArray[np.generic]) -> float:
    return round(float(values.mean()), 6) if len(values) else 0.0


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [round(float(value), 6) for value in values]
