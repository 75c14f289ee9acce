"""The training examples of a checkpoint as a set: one registry entry with their Merkle root, a file that lists them.

A million rows cost one entry; which row was made of which question or document stands in the file beside the
checkpoint, and the root says whether the file is the one that was recorded.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iar.methods.batching import TokenRow
from iar.methods.digest import digest_json
from iar.methods.merkle import merkle_root
from iar.methods.objectives import RECONSTRUCTION
from iar.records import Example, Lineage, QAPair, to_json, write_records

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EXAMPLES, KIND = "examples.jsonl", "examples"
EXAMPLE_SET = "examples_set"  # its place in card.json
SEEN_AS, RENDERED_FROM = "examples", "rendered-from"
DOCUMENTS, QUOTED, SYNTHETIC, GIVEN = "documents", "quoted", "synthetic", "given"
"""Who wrote a target: people in the documents, rules that quote them, a language model; or it was given, unknown."""
RULES = "offline"


@dataclass(frozen=True)
class ExampleUse:
    """A training example: SHA-256 of the whole of it, its id and objective, and the id of what it was made of."""

    digest: str
    id: str
    objective: str
    source_id: str


def answered_by(pairs: Iterable[QAPair]) -> str:
    """Return who wrote the answers of some questions."""
    return QUOTED if all(pair.teacher == RULES for pair in pairs) else SYNTHETIC


def write_examples(
    out: Path,
    examples: Sequence[Example],
    rows: Sequence[TokenRow],
    tokenizer: "PreTrainedTokenizerBase",
    writers: Mapping[str, str],
) -> dict[str, Any]:
    """List the examples that became rows in `examples.jsonl`; return what is recorded of them as a set.

    target_tokens: by who wrote them, in tokens of the model, of one pass over the rows. `writers`: by objective, of
    those that neither reconstruct a document nor retell one, and by id where a single example has another.
    """
    kept = {row.id for row in rows}
    uses = [
        ExampleUse(digest_json(to_json(one)), one.id, one.objective, one.source_id)
        for one in examples
        if one.id in kept
    ]
    write_records(out / EXAMPLES, uses)
    tokens: Counter[str] = Counter()
    for row in rows:
        writer = (
            DOCUMENTS if row.objective in RECONSTRUCTION else writers.get(row.id, writers.get(row.objective, SYNTHETIC))
        )
        tokens[writer] += row.target_length
    return {
        "merkle_root": merkle_root(one.digest for one in uses),
        "examples": len(uses),
        "rows": len(rows),
        "objectives": dict(sorted(Counter(one.objective for one in uses).items())),
        "target_tokens": dict(sorted(tokens.items())),
        "vocabulary": _vocabulary(tokenizer),
    }


def examples_entry(facts: Mapping[str, Any], dataset: str) -> Lineage:
    """Return the entry of a set of examples, by what `write_examples` returned; `dataset` is what they were made of."""
    name = f"{facts[KIND]} examples: {', '.join(facts['objectives'])}"
    return Lineage(KIND, digest_json(dict(facts)), name, dict(facts), ((RENDERED_FROM, dataset),))


def _vocabulary(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Return the digest of a tokenizer's vocabulary: in whose tokens something was counted."""
    return digest_json(tokenizer.get_vocab())
