"""A sample of a run's questions, each with its answer and the text it is about: what one reads to judge a teacher."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from iar.errors import UserError
from iar.records import Chunk, QAPair, read_records, to_json
from iar.services.workspace import Ref

OPEN_FILES = ("train.jsonl", "validation.jsonl")  # the test is read by the locked test alone


def sample_questions(status: Mapping[str, Any], number: int, seed: int) -> list[dict[str, Any]]:
    """Return at most `number` pairs of train and validation as JSON data with `source`, their chunk's text.

    Raises UserError for a run whose questions are not built yet.
    """
    references = {stage["task"]: stage["ref"] for stage in status["stages"]}
    if not references.get("qa-build"):
        raise UserError(f"run {status['run_id']} has built no questions yet; start it with iar run")
    data = Ref.parse(references["qa-build"]).path
    pairs = [pair for name in OPEN_FILES for pair in read_records(data / name, QAPair)]
    places = sorted(random.Random(seed).sample(range(len(pairs)), min(number, len(pairs))))
    source = {chunk.id: chunk.text for chunk in read_records(data / "chunks.jsonl", Chunk)}
    return [to_json(pairs[place]) | {"source": source[pairs[place].chunk_id]} for place in places]


def format_questions(shown: Sequence[Mapping[str, Any]]) -> str:
    """Return the pairs as text, one paragraph each."""
    return "\n\n".join(
        "\n".join(
            [
                f"{number}. {pair['id']} ({pair['split']}, {pair['question_type'].replace('_', ' ')})",
                f"   question: {pair['question']}",
                f"   answer:   {pair['answer']}",
                f"   decides:  {' | '.join([pair['key'] or 'the whole answer', *pair['aliases']])}",
                f"   source:   {' '.join(pair['source'].split())}",
            ]
        )
        for number, pair in enumerate(shown, 1)
    )
