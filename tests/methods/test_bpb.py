"""Bits per byte: the definition, which texts are measured, and the ranking."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iar.methods.bpb import bits_per_byte, num_bytes, ranking, spread
from iar.records import BitsPerByte


def test_bits_are_shared_by_bytes_and_not_by_characters_or_texts() -> None:
    assert num_bytes(["ab", "灯塔"]) == 8
    assert bits_per_byte([6.0, 10.0], ["ab", "灯塔"]) == 2.0
    with pytest.raises(ValueError, match="bits per byte of no text"):
        bits_per_byte([0.0], [""])


@given(texts=st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=40), most=st.integers(1, 2000))
def test_texts_are_taken_evenly_and_in_order(texts: list[str], most: int) -> None:
    numbered = [f"{number}:{text}" for number, text in enumerate(texts)]
    taken = spread(numbered, most)
    assert taken and taken[0] == numbered[0]
    assert taken == sorted(set(taken), key=numbered.index)
    if num_bytes(numbered) <= most:
        assert taken == numbered
    else:
        assert len(taken) == max(1, len(numbered) * most // num_bytes(numbered))


def test_the_least_mean_leads_whatever_the_order_and_equal_weights_count_once() -> None:
    values = {"a": (1.0, 1.5), "b": (0.5, 1.5), "c": (2.0, 0.4), "d": (0.9, 0.9)}
    measured = [BitsPerByte(name, f"weights-{name}", *both, 9, 9) for name, both in values.items()]
    measured.append(BitsPerByte("copy", "weights-b", 0.5, 1.5, 9, 9))
    wanted = ["weights-d", "weights-b", "weights-c", "weights-a"]
    for seed in range(5):
        assert ranking(random.Random(seed).sample(measured, len(measured))) == wanted
