"""Which candidates are the same model: equal bytes, or apart by rounding only."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iar.methods.merge_facts import FACT_DIGITS, may_be_near, squared_distance
from iar.records import Candidate
from iar.services.checkpoints import MappedTensors

if TYPE_CHECKING:
    import torch


def mark_duplicates(
    candidates: Sequence[Candidate], out: Path, base: Path, tuned: Path, within: float
) -> list[Candidate]:
    """Return the candidates, each that is the same model as an earlier one marked as its duplicate.

    The same is: equal weights, or a distance of at most `within` of that between theta_0 and theta_IA. The weights in
    `out` are read only for pairs whose distances to both parents allow that.
    """
    originals: list[Candidate] = []
    marked = []
    for candidate in candidates:
        original, distance = _original(candidate, originals, out, base, tuned, within)
        marked.append(replace(candidate, duplicate_of=original, distance_to_original=distance))
        if not original:
            originals.append(candidate)
    return marked


def _original(
    candidate: Candidate, originals: Sequence[Candidate], out: Path, base: Path, tuned: Path, within: float
) -> tuple[str, float]:
    """Return the id of the first model that is the same, and how far it is; ("", 0) for a model of its own."""
    for other in originals:
        if other.digest == candidate.digest:
            return other.id, 0.0
    facts = candidate.distance_to_base, candidate.distance_to_tuned
    for other in originals if within else ():
        if may_be_near(facts, (other.distance_to_base, other.distance_to_tuned), within):
            distance = relative_distance(out / candidate.id, out / other.id, base, tuned)
            if distance <= within:
                return other.id, round(distance, FACT_DIGITS)
    return "", 0.0


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
