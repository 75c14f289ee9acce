"""General instruction data for replay: prompts with their answers, from a JSONL file or the hub."""

from collections.abc import Mapping
from typing import Any

from iar.errors import UserError
from iar.methods.objectives import example
from iar.records import Example
from iar.services.source_rows import HubSplit, SourceRow, source_rows

KEY = "baselines.replay_data"
OBJECTIVE = "replay"
HUB = HubSplit("databricks/databricks-dolly-15k", "train")
# The names that public sets give to a prompt and its answer.
LAYOUTS = (
    ("prompt", "answer"),
    ("prompt", "response"),
    ("instruction", "response"),
    ("instruction", "output"),
    ("question", "answer"),
)
# What some sets put beside the instruction: the text that it speaks of.
CONTEXTS = ("input", "context")


def general_examples(place: str) -> list[Example]:
    """Return the instructions of a file or hub id as training examples, equal ones once.

    A row has `prompt` and `answer` (or another pair of LAYOUTS), or `messages` whose first user turn and the
    assistant turn after it are taken. Raises UserError naming the row that has neither, and for no row at all.
    """
    found = {one.id: one for one in (_example(row) for row in source_rows(place, KEY, HUB))}
    if not found:
        raise UserError(f"{KEY}: {place} has no rows; give a file with at least one")
    return list(found.values())


def _example(row: SourceRow) -> Example:
    if "messages" in row.data:
        prompt, answer = _turns(row)
    else:
        names = next((pair for pair in LAYOUTS if set(pair) <= set(row.data)), None)
        if names is None:
            known = " or ".join(f"{first!r} with {second!r}" for first, second in LAYOUTS[:1])
            raise row.wrong(f"keys {', '.join(row.data)}", f"give {known}, or 'messages'")
        prompt, answer = (row.get(name, str).strip() for name in names)
        contexts = [row.data[name].strip() for name in CONTEXTS if isinstance(row.data.get(name), str)]
        prompt = "\n\n".join(filter(None, [prompt, *contexts]))
    return example(OBJECTIVE, row.place.rpartition("/")[2], prompt, answer)


def _turns(row: SourceRow) -> tuple[str, str]:
    turns: list[Mapping[str, Any]] = [turn for turn in row.get("messages", list) if turn.get("role") != "system"]
    if [turn.get("role") for turn in turns[:2]] != ["user", "assistant"]:
        raise row.wrong("messages do not begin with a user and an assistant turn", "correct or remove the row")
    return str(turns[0]["content"]).strip(), str(turns[1]["content"]).strip()
