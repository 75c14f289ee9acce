"""People beside the judges: a stratified sample of judged replies as CSV, read back with their labels.

Who labels sees question, reference and reply, no model and no score. Only validation is shown: the test stays locked.
"""

import csv
import io
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.agreement import HumanAgreement, human_agreement
from iar.records import EvalItem, Reply, Vote, read_records
from iar.services.judges import judge_names, read_votes, settled
from iar.services.scoring import JUDGED_ITEMS, REPLIES, VOTES

COLUMNS = ("id", "suite", "question", "reference", "reply", "label")
PANEL = "panel"
ID_DIGITS = 16
ID_START = "r-"  # digits alone, or with an e among them, are a number to a spreadsheet, which writes back another one
# A spreadsheet takes a cell that begins so for a formula; the apostrophe makes it text (OWASP, CSV injection).
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
LABELS = {"0": 0.0, "0.5": 0.5, "0,5": 0.5, ".5": 0.5, "1": 1.0, "0.0": 0.0, "1.0": 1.0}


@dataclass(frozen=True)
class JudgedReply:
    """A reply with what the panel made of it; replies of one text to one question are one."""

    id: str
    item: EvalItem
    text: str
    votes: tuple[Vote, ...]

    @property
    def stratum(self) -> tuple[str, str]:
        """Suite, and the settled score or that the first two judges differed."""
        if len(self.votes) > 2:
            return self.item.suite, "disputed"
        return self.item.suite, str(settled(self.votes).score)


def judged_replies(folders: Sequence[Path], model: str = "") -> list[JudgedReply]:
    """Return the replies below the folders of judge-eval, each text once, in the order of their ids; `model` = its own.

    Raises UserError where no folder keeps what its judges were asked, as versions before this one did not.
    """
    found: dict[str, JudgedReply] = {}
    for folder in folders:
        if not (folder / JUDGED_ITEMS).is_file():
            raise UserError(f"{folder}: no {JUDGED_ITEMS}, an older version judged there; run the run file again")
        items = {item.id: item for item in read_records(folder / JUDGED_ITEMS, EvalItem)}
        for path in sorted(folder.glob(f"{model or '*'}/{VOTES}")):
            for one in _of_model(path.parent, items):
                found.setdefault(one.id, one)
    return sorted(found.values(), key=lambda one: one.id)


def _of_model(folder: Path, items: Mapping[str, EvalItem]) -> Iterator[JudgedReply]:
    texts = {reply.item_id: reply.text for reply in read_records(folder / REPLIES, Reply)}
    votes: dict[str, list[Vote]] = defaultdict(list)
    shown: dict[str, str] = {}
    for one in read_votes(folder / VOTES):
        votes[one.vote.item_id].append(one.vote)
        shown[one.vote.item_id] = one.prompt_hash
    for key, cast in votes.items():
        yield JudgedReply(f"{ID_START}{shown[key][:ID_DIGITS]}", items[key], texts[key], tuple(cast))


def draw_sample(replies: Sequence[JudgedReply], number: int, seed: int) -> list[JudgedReply]:
    """Return at most `number` replies: of each stratum its share, rounded up, in an order that tells nothing."""
    chance = random.Random(seed)
    strata: dict[tuple[str, str], list[JudgedReply]] = defaultdict(list)
    for one in replies:
        strata[one.stratum].append(one)
    chosen: list[JudgedReply] = []
    for members in strata.values():
        share = -(-number * len(members) // len(replies))
        chosen += chance.sample(members, min(share, len(members)))
    chance.shuffle(chosen)
    return chosen[:number]


def sample_csv(sample: Sequence[JudgedReply]) -> str:
    """Return the sample as CSV with an empty column `label`; no cell is a formula to a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for one in sample:
        cells = (one.id, one.item.suite, one.item.prompt, _reference(one.item), one.text, "")
        writer.writerow(map(_safe, cells))
    return "\ufeff" + out.getvalue()  # without the mark Excel reads UTF-8 as Latin-1


def _reference(item: EvalItem) -> str:
    points = item.reference.get("points", ())
    if points:
        return "\n".join(f"• {point}" for point in points)
    return " / ".join([item.reference["reference"], *item.reference.get("aliases", ())])


def _safe(cell: str) -> str:
    text = "".join(character for character in cell if character.isprintable() or character in "\n\t")
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA_STARTS) else text


def read_labels(path: Path) -> dict[str, float]:
    """Return label by id of the rows that have one. Raises UserError naming line, value and fix."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        head = text.partition("\n")[0]
        rows = csv.DictReader(
            io.StringIO(text, newline=""), delimiter=";" if head.count(";") > head.count(",") else ","
        )
        if not {"id", "label"} <= set(rows.fieldnames or ()):
            raise UserError(f"{path}: no columns id and label, only {', '.join(rows.fieldnames or ['none'])[:80]}")
        labels = dict(_labels(path, rows))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: not a CSV file in UTF-8: {error}; save it as CSV UTF-8") from error
    if not labels:
        raise UserError(f"{path}: no row has a label; write 0, 0.5 or 1 into the column label")
    return labels


def _labels(path: Path, rows: "csv.DictReader[str]") -> Iterator[tuple[str, float]]:
    for row in rows:
        written = (row["label"] or "").strip()
        if not written:
            continue
        if written not in LABELS:
            raise UserError(f"{path}:{rows.line_num}: label {written[:20]!r}; write 0, 0.5 or 1, or leave it empty")
        yield row["id"].strip(), LABELS[written]


def compare_with_people(
    run_file: RunFile, replies: Sequence[JudgedReply], labels: Mapping[str, float], source: str
) -> list[HumanAgreement]:
    """Return the agreement with people of each judge and of the panel, weighted back to all replies.

    Raises UserError for a label of no reply of this run.
    """
    known = {one.id.removeprefix(ID_START): one for one in replies}
    labels = {key.removeprefix(ID_START): label for key, label in labels.items()}  # samples of old had the digits alone
    if strangers := [key for key in labels if key not in known]:
        raise UserError(
            f"{source}: {strangers[0][:40]!r} is no reply of run {run_file.run_id}, nor are "
            f"{len(strangers) - 1} others; take the file that iar verifier sample wrote for this run"
        )
    labelled = [known[key] for key in labels]
    sizes, drawn = (_strata_sizes(rows) for rows in (replies, labelled))
    weights = [sizes[one.stratum] / drawn[one.stratum] for one in labelled]
    settings = {"resamples": run_file.evaluate.resamples, "seed": run_file.run.seed}
    scores: dict[str, list[float | None]] = {
        judge: [next((vote.score for vote in one.votes if vote.judge == judge), None) for one in labelled]
        for judge in judge_names(run_file)
    }
    scores[PANEL] = [settled(one.votes).score for one in labelled]
    return [
        human_agreement(judge, given, list(labels.values()), weights, **settings) for judge, given in scores.items()
    ]


def _strata_sizes(replies: Sequence[JudgedReply]) -> dict[tuple[str, str], int]:
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for one in replies:
        sizes[one.stratum] += 1
    return sizes
