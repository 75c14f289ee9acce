"""Further texts from a document, of which a fact is learnt more surely: paraphrases, and texts on relations.

Paraphrases in several registers are those of WRAP (Maini et al. 2024, arXiv 2401.16380): passages of at most 300
tokens, because a longer one loses facts. Texts on pairs and triples of a document's objects are those of EntiGraph
(Yang et al. 2024, arXiv 2409.07431). A language model writes both, from the source alone.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

MOST_TOKENS = 300
TRIPLE_SHARE = 1 / 3
_MOST_OBJECTS = 24  # 276 pairs, 2,024 triples; more would only fill memory


@dataclass(frozen=True)
class Register:
    """How a paraphrase is written: `wanted` tells the teacher, `phrase` stands in the training prompt."""

    wanted: str
    phrase: str


REGISTERS = {
    "plain": Register(
        "plain words and short sentences, such as a bright child of twelve understands", "in plain words"
    ),
    "encyclopedic": Register("the neutral, dense prose of an encyclopedia", "as an encyclopedia would"),
    "scholarly": Register("formal, precise prose with exact terms, as in a scholarly article", "as a scholar would"),
    "spoken": Register(
        "what somebody who knows it well would tell a friend, in whole sentences", "as one tells a friend"
    ),
}


def choose_groups(objects: Sequence[str], most: int, generator: random.Random) -> list[tuple[str, ...]]:
    """Return at most `most` pairs and triples of different objects, a third of them triples, in the order drawn."""
    names = list(dict.fromkeys(objects))
    names = generator.sample(names, min(len(names), _MOST_OBJECTS))
    triples = list(combinations(names, 3))
    pairs = list(combinations(names, 2))
    chosen = generator.sample(triples, min(len(triples), int(most * TRIPLE_SHARE)))
    return [*generator.sample(pairs, min(len(pairs), most - len(chosen))), *chosen]


def in_words(objects: Sequence[str]) -> str:
    """Return "A and B", "A, B and C"."""
    *most, last = objects
    return f"{', '.join(most)} and {last}" if most else last
