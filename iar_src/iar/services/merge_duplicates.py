"""Which candidates are the same model: equal bytes, or apart by rounding only."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from iar.methods.merge_facts import FACT_DIGITS, may_be_near, squared_distance
from iar.records import Candidate
from iar.services.checkpoints import MappedTensors

if TYPE_CHECKING:
    import torch

Distance = Callable[[Candidate, Candidate], float]
"""How far two candidates are apart, in units of the distance between theta_0 and theta_IA."""


def mark_duplicates(candidates: Sequence[Candidate], distance: Distance, within: float) -> list[Candidate]:
    """Return the candidates, each that is the same model as an earlier one marked as its duplicate.

    The same is: equal weights, or a distance of at most `within` of that between theta_0 and theta_IA, which is asked
    for only where the distances to both parents allow it. One without a digest belongs to another task: it is compared
    with, and not returned.
    """

    @cache
    def original_of(number: int) -> tuple[str, float]:
        """Return the id of the first model that is the same, and how far it is; ("", 0) for a model of its own."""
        candidate, earlier = candidates[number], list(enumerate(candidates[:number]))
        for place, other in earlier:
            if candidate.digest and other.digest == candidate.digest and not original_of(place)[0]:
                return other.id, 0.0
        for place, other in earlier:
            if _may_be_same(candidate, other, within) and not original_of(place)[0]:
                apart = distance(candidate, other)
                if apart <= within:
                    return other.id, round(apart, FACT_DIGITS)
        return "", 0.0

    marked = []
    for number, candidate in enumerate(candidates):
        if candidate.digest:
            original, apart = original_of(number)
            marked.append(replace(candidate, duplicate_of=original, distance_to_original=apart))
    return marked


def _may_be_same(candidate: Candidate, other: Candidate, within: float) -> bool:
    if not within and candidate.digest and other.digest:  # they differ, so the weights do
        return False
    facts = [(one.distance_to_base, one.distance_to_tuned) for one in (candidate, other)]
    return may_be_near(facts[0], facts[1], within)


def written_distance(out: Path, base: Path, tuned: Path) -> Distance:
    """Return the function that reads the weights of two candidates in `out`."""
    return lambda one, other: relative_distance(out / one.id, out / other.id, base, tuned)


def relative_distance(first: Path, second: Path, base: Path, tuned: Path) -> float:
    """Return the distance of two checkpoints in units of that between `base` and `tuned`."""
    apart, delta = (squared_distance(_paired(*pair)) for pair in ((first, second), (tuned, base)))
    return float((apart / delta) ** 0.5) if delta else float("inf")


def _paired(first: Path, second: Path) -> "Iterator[tuple[torch.Tensor, torch.Tensor]]":
    """Yield the blocks of the tensors that both checkpoints have."""
    from iar.methods.merge_blocks import BLOCK_ELEMENTS

    one, other = MappedTensors(first), MappedTensors(second)
    for name in sorted(one.info.keys() & other.info.keys()):
        yield from zip(one.flat(name).split(BLOCK_ELEMENTS), other.flat(name).split(BLOCK_ELEMENTS), strict=True)
        one.release(name)
        other.release(name)
