"""The votes of many models as ballots, read by column: hundreds of thousands in a second."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iar.errors import PermanentError
from iar.methods.ballots import Ballots, ReplyFacts, ReplyKey, arrange
from iar.records import EvalItem, Reply, read_records
from iar.services.scoring import JUDGED_ITEMS, REPLIES, VOTES

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

_COLUMNS = ("model", "suite", "item_id", "judge", "judge_version", "attempt", "score")


def read_table(paths: Iterable[Path]) -> Any:
    """Return the archived votes of several files as one Arrow table, texts as dictionaries. None without a file.

    Raises PermanentError for a damaged file.
    """
    import pyarrow
    import pyarrow.parquet

    tables = []
    for path in paths:
        try:
            tables.append(pyarrow.parquet.read_table(path, columns=list(_COLUMNS)))
        except pyarrow.ArrowException as error:
            raise PermanentError(f"{path}: not a complete vote archive: {error}") from error
    return pyarrow.concat_tables(tables) if tables else None


def to_ballots(table: Any, judges: Sequence[str], facts: Mapping[ReplyKey, ReplyFacts]) -> Ballots:
    """Return the ballots of an Arrow table of votes; those of other judges are left out."""
    import numpy as np
    import pyarrow.compute

    table = table.filter(pyarrow.compute.is_in(table["judge"], value_set=pyarrow.array(list(judges))))
    codes, names = zip(*(_coded(table[name]) for name in ("model", "suite", "item_id")), strict=True)
    whole = np.ravel_multi_index(codes, [max(1, len(found)) for found in names])
    keys, reply = np.unique(whole, return_inverse=True)
    parts = np.unravel_index(keys, [max(1, len(found)) for found in names])
    replies = [(names[0][model], names[1][suite], names[2][item]) for model, suite, item in zip(*parts, strict=True)]
    judge_codes, judge_names = _coded(table["judge"])
    places = np.array([list(judges).index(name) for name in judge_names], dtype=np.int64)
    score = table["score"].to_numpy(zero_copy_only=False).astype(np.float64)
    attempt = table["attempt"].to_numpy().astype(np.int64)
    return arrange(replies, reply, places[judge_codes], attempt, score, len(judges), facts)


def reply_facts(folder: Path) -> dict[ReplyKey, ReplyFacts]:
    """Return the facts of the judged replies below an evaluation's folder; none where an older one kept no items."""
    if not (folder / JUDGED_ITEMS).is_file():
        return {}
    items = {item.id: item for item in read_records(folder / JUDGED_ITEMS, EvalItem)}
    return {
        (path.parent.name, items[reply.item_id].suite, reply.item_id): facts_of(items[reply.item_id], reply)
        for path in sorted(folder.glob(f"*/{REPLIES}"))
        for reply in read_records(path, Reply)
        if reply.item_id in items
    }


def facts_of(item: EvalItem, reply: Reply) -> ReplyFacts:
    """Return a reply's length, and where in it the reference or an alias begins."""
    said = reply.text.casefold()
    answers = [item.reference.get("reference", ""), *item.reference.get("aliases", ())]
    found = [place for answer in answers if answer and (place := said.find(answer.casefold())) >= 0]
    return ReplyFacts(reply.tokens, min(found) / len(said) if found else None)


def vote_files(folder: Path) -> list[Path]:
    """Return the archives of the models below the folder of an evaluation."""
    return sorted(folder.glob(f"*/{VOTES}"))


def _coded(column: Any) -> "tuple[NDArray[numpy.int64], list[str]]":
    """Return the number of each text, [V], and the texts by their number."""
    import numpy as np

    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()
