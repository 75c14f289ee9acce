"""Bits per UTF-8 byte of text under a model, which compares models of any tokenizer, and ranks candidates.

BPB = sum over the tokens of -log2 p(x_t | x_<t), divided by the bytes of the text.
"""

from collections.abc import Iterable, Sequence

from iar.records import BitsPerByte


def num_bytes(texts: Iterable[str]) -> int:
    """Return the length of the texts together, in UTF-8 bytes."""
    return sum(len(text.encode("utf-8")) for text in texts)


def bits_per_byte(bits: Sequence[float], texts: Sequence[str]) -> float:
    """Return the bits of all texts over their bytes. Raises ValueError where there is no byte."""
    if not (total := num_bytes(texts)):
        raise ValueError("bits per byte of no text")
    return sum(bits) / total


def spread(texts: Sequence[str], most_bytes: int) -> list[str]:
    """Return as many of the texts as `most_bytes` hold, at least one, taken evenly from all of them, in order."""
    total = num_bytes(texts)
    count = len(texts) if total <= most_bytes else max(1, len(texts) * most_bytes // total)
    return [texts[place * len(texts) // count] for place in range(count)]


def ranking(measured: Sequence[BitsPerByte]) -> list[str]:
    """Return the digests of the distinct weights, those with the least mean of both BPBs first.

    Source text stands for the domain score, general text for the general one, and both count alike.
    """
    means = {one.checkpoint_digest: (one.source + one.general) / 2 for one in measured}
    return sorted(means, key=lambda digest: (means[digest], digest))
