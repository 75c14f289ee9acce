"""Bits per byte of a model on two texts: held-out source text, and general text that no training data gives away."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from iar.methods.bpb import bits_per_byte, num_bytes, spread
from iar.records import BitsPerByte, Chunk, EvalItem, QAPair, from_json, read_records
from iar.services.evaluations import GENERAL

BPB, ALL_BPB = "bpb.json", "bpb.jsonl"


@runtime_checkable
class Reader(Protocol):
    """A model that says how many bits texts take, such as an Engine."""

    def bits(self, texts: Sequence[str]) -> list[float]: ...


@dataclass(frozen=True)
class BpbTexts:
    """The texts that are measured: passages of the documents, and general text."""

    source: tuple[str, ...]
    general: tuple[str, ...]


def bpb_texts(data: Path, suites: Mapping[str, Sequence[EvalItem]], most_bytes: int) -> BpbTexts:
    """Return at most `most_bytes` of each text: the chunks that the validation questions are about, and prompts.

    The prompts are those of the three general suites, as many bytes of each: text of many kinds that decontamination
    has kept out of the training data.
    """
    asked = {pair.chunk_id for pair in read_records(data / "validation.jsonl", QAPair)}
    chunks = [chunk.text for chunk in read_records(data / "chunks.jsonl", Chunk) if chunk.id in asked]
    prompts = [spread([item.prompt for item in suites[name]], most_bytes // len(GENERAL)) for name in GENERAL]
    return BpbTexts(tuple(spread(chunks, most_bytes)), tuple(text for some in prompts for text in some))


def measure_bpb(model: str, digest: str, reader: Reader, texts: BpbTexts) -> BitsPerByte:
    """Return the bits per byte of a model, whose weights have this digest, on both texts."""
    bits = reader.bits([*texts.source, *texts.general])
    source, general = bits[: len(texts.source)], bits[len(texts.source) :]
    return BitsPerByte(
        model,
        digest,
        bits_per_byte(source, texts.source),
        bits_per_byte(general, texts.general),
        num_bytes(texts.source),
        num_bytes(texts.general),
    )


def read_bpb(folder: Path, digest: str) -> BitsPerByte | None:
    """Return what was measured of these weights in a model's folder, None where that is not done."""
    if not (folder / BPB).is_file():
        return None
    found = from_json(BitsPerByte, json.loads((folder / BPB).read_text(encoding="utf-8")))
    return found if found.checkpoint_digest == digest else None


def read_all_bpb(folders: Iterable[Path]) -> list[BitsPerByte]:
    """Return what was measured of all models in the folders of evaluations."""
    files = [folder / ALL_BPB for folder in folders if (folder / ALL_BPB).is_file()]
    return [one for path in files for one in read_records(path, BitsPerByte)]
