"""The QA build's own texts and questions against the evaluations, as many as there may be: none is held in memory.

Only the prompts that are looked for are, at most HELD_OUT of our own at once; more of them are gone through in as many
rounds, each over all that is looked at.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from iar.methods.contamination import Evaluation, Hit, PromptIndex, TrainingText
from iar.methods.digest import digest_list
from iar.records import CrossDocumentPair, Document, QAPair, Reject, Retelling
from iar.services.decontamination import Decontamination, decontaminate, nothing_checked, reject
from iar.services.evaluations import OWN, own_evaluation

HELD_OUT = 20_000


@dataclass(frozen=True)
class Cleaned:
    """What goes, by its id in the order in which it came, and what was checked."""

    dropped: dict[str, Reject]
    found: Decontamination


def clean_texts(
    dataset: str, texts: Iterable[Document | Retelling], general: Sequence[Evaluation], step: str
) -> Cleaned:
    """Return which texts give away a prompt of the general evaluations.

    Every row of Inject trains on a document's own text or a retelling's, so where these are clean its rows are.
    """
    found = decontaminate(dataset, _training_texts(texts), general)
    return Cleaned({name: reject(step, hit) for name, hit in _in_order(found)}, found)


def clean_questions(
    pairs: Iterable[QAPair],
    texts: Iterable[Document | Retelling],
    general: Sequence[Evaluation],
    taught: Iterable[QAPair] = (),
) -> Cleaned:
    """Return which pairs stand in the way of an honest test; all but `general` is gone through several times.

    `texts` is what Inject reads. A held-out question that one of them asks itself goes, for Inject would read it word
    for word; a training pair goes that gives away a held-out question or a prompt of the general evaluations.
    `taught` is what the model was trained on before: a held-out question goes that one of these pairs gives away.
    """
    dropped = asked_in(pairs, texts)
    dropped |= _given_away(_Without(pairs, dropped), taught) if taught else {}
    left = _Without(pairs, dropped)
    rounds: list[Decontamination] = []
    for held_out in _blocks(pair for pair in left if pair.split != "train"):
        own = [own_evaluation(split, (pair for pair in held_out if pair.split == split)) for split in OWN]
        trained = (TrainingText(pair.id, pair.question, pair.answer) for pair in left if pair.split == "train")
        rounds.append(decontaminate("questions", trained, own if rounds else [*own, *general]))
    digests = {split: digest_list((pair.id, pair.question) for pair in left if pair.split == split) for split in OWN}
    found = _together(rounds, digests)
    leaks = {name: reject("decontaminated", hit) for name, hit in _in_order(found)}
    return Cleaned(dropped | leaks, found)


def asked_in(pairs: Iterable[QAPair], texts: Iterable[Document | Retelling], step: str = "") -> dict[str, Reject]:
    """Return the held-out questions that stand in a text as a whole; `step` is what drops them, "" = by their kind.

    A question with a gap quotes its document, as it is meant to; so only whole questions count.
    """
    dropped: dict[str, Reject] = {}
    for held_out in _blocks(pair for pair in pairs if pair.split != "train"):
        index = PromptIndex([own_evaluation("held-out", held_out)])
        places: dict[str, str] = {}
        for text in _training_texts(texts):
            for hit in index.find(TrainingText(text.id, text.text, "")):
                if hit.rule != "8-gram" and hit.share == 1:
                    places.setdefault(hit.prompt_id, text.id)
        for pair in (pair for pair in held_out if pair.id in places):
            reason = f"stands in a document ({pair.split})"
            dropped[pair.id] = Reject(
                step or _step(pair), pair.id, reason, pair.question, places[pair.id], "contaminated"
            )
    return dropped


def _given_away(pairs: Iterable[QAPair], taught: Iterable[QAPair]) -> dict[str, Reject]:
    """Return the held-out questions that pairs taught before give away, by the rules for training pairs."""
    dropped: dict[str, Reject] = {}
    for held_out in _blocks(pair for pair in pairs if pair.split != "train"):
        index = PromptIndex([own_evaluation("held-out", held_out)])
        places: dict[str, str] = {}
        for one in taught:
            for hit in index.find(TrainingText(one.id, one.question, one.answer)):
                places.setdefault(hit.prompt_id, one.id)
        for pair in (pair for pair in held_out if pair.id in places):
            reason = f"taught with earlier documents ({pair.split})"
            dropped[pair.id] = Reject(_step(pair), pair.id, reason, pair.question, places[pair.id], "contaminated")
    return dropped


def _step(pair: QAPair) -> str:
    return "cross_decontaminated" if isinstance(pair, CrossDocumentPair) else "decontaminated"


@dataclass(frozen=True)
class _Without:
    """The pairs but for some; may be gone through again."""

    pairs: Iterable[QAPair]
    dropped: dict[str, Reject]

    def __iter__(self) -> Iterator[QAPair]:
        return (pair for pair in self.pairs if pair.id not in self.dropped)


def _blocks(pairs: Iterator[QAPair]) -> Iterator[list[QAPair]]:
    """Yield at most HELD_OUT pairs at a time, and an empty list where there are none."""
    block = list(islice(pairs, HELD_OUT))
    yield block
    while block := list(islice(pairs, HELD_OUT)):
        yield block


def _together(rounds: Sequence[Decontamination], digests: dict[str, str]) -> Decontamination:
    """Return the rounds as one check an evaluation; `digests`: of our own, of which each round saw a part."""
    worst: dict[tuple[str, str], Hit] = {}
    for hit in (hit for one in rounds for hit in one.hits):
        before = worst.get((hit.item_id, hit.evaluation))
        if before is None or hit.share > before.share:
            worst[hit.item_id, hit.evaluation] = hit
    hits = Counter(evaluation for _, evaluation in worst)
    checks = []
    for first in rounds[0].checks:
        same = [check for one in rounds for check in one.checks if check.evaluation == first.evaluation]
        sums = {name: sum(getattr(check, name) for check in same) for name in ("prompts", "checked", "planted")}
        whole = replace(first, **sums, hits=hits[first.evaluation])
        if first.evaluation in digests:
            unchecked = nothing_checked(whole.prompts, whole.checked, whole.items)
            whole = replace(whole, digest=digests[first.evaluation], unchecked=unchecked)
        checks.append(whole)
    return Decontamination(tuple(checks), tuple(worst.values()))


def _in_order(found: Decontamination) -> Iterator[tuple[str, Hit]]:
    """Yield the items with a hit and the first of each, in the order of the items."""
    worst = found.worst
    return ((name, worst[name]) for name in dict.fromkeys(hit.item_id for hit in found.hits))


def _training_texts(texts: Iterable[Document | Retelling]) -> Iterator[TrainingText]:
    return (TrainingText(one.id, one.title if isinstance(one, Document) else "", one.text) for one in texts)
