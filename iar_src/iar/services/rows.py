"""From examples to token rows with the model's tokenizer, and the dataset card that describes them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iar.config import InjectSection
from iar.errors import UserError
from iar.methods.batching import TokenRow, window_rows
from iar.methods.chat import encode_prompt, end_of_turn, template_hash
from iar.methods.objectives import Passage, reconstruction_rows
from iar.methods.passages import fitting_parts
from iar.records import Example, Reject, write_json, write_records
from iar.services.example_sets import EXAMPLE_SET, write_examples

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_DROPPED_SHARE = 0.05
QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
RENDERED_ROWS = 3


def tokenise(
    examples: Iterable[Example], tokenizer: "PreTrainedTokenizerBase", system_turn: str | None, sequence_length: int
) -> tuple[list[TokenRow], list[Reject]]:
    """Return the token rows of all examples, prompt and target tokenised apart, and those dropped with a reason."""
    end_id = end_of_turn(tokenizer)
    rows: list[TokenRow] = []
    rejects: list[Reject] = []
    for example in examples:
        prompt_ids = encode_prompt(tokenizer, example.prompt, system_turn)
        target_ids = tokenizer(example.target, add_special_tokens=False)["input_ids"]
        windows = window_rows(example, prompt_ids, target_ids, end_id, sequence_length)
        if isinstance(windows, Reject):
            rejects.append(windows)
        else:
            rows.extend(windows)
    return rows, rejects


def fit_passages(
    passages: Iterable[Passage],
    settings: InjectSection,
    seed: int,
    tokenizer: "PreTrainedTokenizerBase",
    system_turn: str | None,
) -> list[list[Passage]]:
    """Return for each passage itself, or its parts where it has a row longer than the sequence."""

    tag = settings.provenance_tag

    def count_tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    def longest_row(passage: Passage) -> int:
        rows = {(row.prompt, row.target) for row in reconstruction_rows([passage], settings.weights, seed, tag)}
        # The end of the turn is one token more.
        return max(
            (len(encode_prompt(tokenizer, prompt, system_turn)) + count_tokens(target) + 1 for prompt, target in rows),
            default=0,
        )

    return [fitting_parts(passage, settings.sequence_length, longest_row, count_tokens) for passage in passages]


def prepare(
    examples: Sequence[Example],
    tokenizer: "PreTrainedTokenizerBase",
    system_turn: str | None,
    sequence_length: int,
    out: Path,
    counts: Mapping[str, int] | None = None,
    writers: Mapping[str, str] | None = None,
) -> list[TokenRow]:
    """Tokenise, write `card.json` with `counts`, `rejects.jsonl` and `examples.jsonl`, and return the rows.

    `writers`: who wrote the targets, as `write_examples` takes it.

    Raises UserError where no row is left or more than MAX_DROPPED_SHARE of the examples are dropped.
    """
    rows, rejects = tokenise(examples, tokenizer, system_turn, sequence_length)
    write_records(out / "rejects.jsonl", rejects)
    if not rows or len(rejects) > MAX_DROPPED_SHARE * len(examples):
        reason = rejects[0].reason if rejects else "there are no examples"
        raise UserError(
            f"{len(rejects)} of {len(examples)} training rows do not fit sequence_length {sequence_length} "
            f"({reason}); raise sequence_length"
        )
    card = dataset_card(examples, rows, rejects, tokenizer) | dict(counts or {})
    card[EXAMPLE_SET] = write_examples(out, examples, rows, tokenizer, writers or {})
    write_json(out / "card.json", card)
    return rows


def dataset_card(
    examples: Sequence[Example],
    rows: Sequence[TokenRow],
    rejects: Sequence[Reject],
    tokenizer: "PreTrainedTokenizerBase",
) -> dict[str, Any]:
    """Return what one wants to know of a training set before the first step.

    windowed_examples: those whose target is longer than the sequence; windows: the rows that they became.
    """
    lengths = sorted(len(row.token_ids) for row in rows)
    objectives = Counter(row.objective for row in rows)
    return {
        "examples": len(examples),
        "rows": len(rows),
        "windowed_examples": sum(row.windows > 1 and row.window == 1 for row in rows),
        "windows": sum(row.windows > 1 for row in rows),
        "dropped": dict(Counter(reject.reason for reject in rejects)),
        "tokens": sum(lengths),
        "target_tokens": sum(row.target_length for row in rows),
        "length_quantiles": {str(share): lengths[round(share * (len(lengths) - 1))] for share in QUANTILES},
        "objective_share": {name: count / len(rows) for name, count in sorted(objectives.items())},
        "template_sha256": template_hash(tokenizer),
        "rendered": [rendered(row, tokenizer) for row in rows[:: max(1, len(rows) // RENDERED_ROWS)][:RENDERED_ROWS]],
    }


def rendered(row: TokenRow, tokenizer: "PreTrainedTokenizerBase") -> dict[str, str]:
    """Return a row as text, masked part and trained part apart."""
    return {
        "id": row.id,
        "objective": row.objective,
        "masked": str(tokenizer.decode(list(row.token_ids[: row.prompt_length]))),
        "trained": str(tokenizer.decode(list(row.token_ids[row.prompt_length :]))),
    }
