"""How the changes of several document sets relate, read from the checkpoints after each: one pass, block by block."""

from collections.abc import Sequence
from pathlib import Path

from iar.methods.deltas import Gram, delta_facts, gram
from iar.records import DeltaFacts, read_records, write_records
from iar.services.checkpoints import MappedTensors
from iar.services.merge_checks import shared_layout

DELTAS = "deltas.jsonl"
BLOCK_ELEMENTS = 1 << 20  # 4 MiB in fp32 a checkpoint, large enough for one matrix product


def compare_deltas(checkpoints: Sequence[Path]) -> list[DeltaFacts]:
    """Return the facts on the changes from each checkpoint to the next; theta_0 comes first.

    Raises UserError where two of them do not have the same tensors.
    """
    mapped = [MappedTensors(folder) for folder in checkpoints]
    layout, *_ = (shared_layout(mapped[0], tensors) for tensors in mapped[1:])
    grams: dict[str, Gram] = {}
    for name in (info.name for info in layout if info.elements):
        blocks = zip(*(tensors.flat(name).split(BLOCK_ELEMENTS) for tensors in mapped), strict=True)
        first, *rest = (gram(thetas) for thetas in blocks)
        for one in rest:
            first = first + one
        grams[name] = first
        for tensors in mapped:
            tensors.release(name)
    return delta_facts(grams)


def write_deltas(out: Path, checkpoints: Sequence[Path]) -> list[DeltaFacts]:
    """Write the facts under `out` and return them."""
    facts = compare_deltas(checkpoints)
    write_records(out / DELTAS, facts)
    return facts


def read_deltas(folder: Path) -> list[DeltaFacts]:
    """Return what `write_deltas` left; [] where it left nothing."""
    return list(read_records(folder / DELTAS, DeltaFacts)) if (folder / DELTAS).is_file() else []
