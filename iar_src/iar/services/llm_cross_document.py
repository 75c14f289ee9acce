"""Questions over two documents, by a language model: they need a statement of each of two chunks with one anchor."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iar.methods.digest import digest_json
from iar.methods.prompting import fence
from iar.methods.question_form import question_fault
from iar.methods.shared_anchors import Crossing
from iar.methods.teaching import BOTH, Crossed, funnel_step
from iar.methods.textnorm import normalise
from iar.methods.verbalised_sampling import draw_question
from iar.records import CrossDocumentPair, Reject
from iar.services.llm import ChatClient
from iar.services.llm_teacher_replies import (
    REPEATED,
    Certificate,
    ProposedAnswer,
    ProposedQuestions,
    ask_forms,
    literal_forms,
    unread,
)

STEP = "cross_document"
# Pairs of chunks that the teacher asked something about; what it asked is counted after.
PROPOSED = "cross_proposed"
QUESTION_TYPE = "comparison_and_relation"
_CALLS = 6  # question, four certificates, answer


@dataclass(frozen=True)
class _Draft:
    crossing: Crossing
    question: str

    @property
    def texts(self) -> tuple[str, str]:
        return self.crossing.first.text, self.crossing.second.text


def ask_across(
    client: ChatClient,
    crossings: Sequence[Crossing],
    candidates: int,
    teacher: str,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Crossed:
    """Return at most one pair a crossing, for the test.

    One certifier sees the question alone. Another sees both passages and must pass it, then each passage alone and must
    refuse it: a question that one passage answers is none over two.
    """
    across = _Across(client, on_progress)
    drafts = across.questions(crossings, candidates, seed)
    drafts = across.certify("self_contained", drafts, lambda draft: (), True, "not self-contained")
    drafts = across.certify("grounded", drafts, lambda draft: draft.texts, True, "not grounded in the two chunks")
    drafts = across.certify(
        "grounded", drafts, lambda draft: draft.texts[:1], False, "answered by the first chunk alone"
    )
    drafts = across.certify(
        "grounded", drafts, lambda draft: draft.texts[1:], False, "answered by the second chunk alone"
    )
    pairs = across.answers(drafts, teacher)
    funnel = [
        funnel_step(PROPOSED, "two chunks with one anchor", across.counts[PROPOSED], across.rejects, len(crossings)),
        funnel_step(STEP, BOTH, len(pairs), across.rejects, across.counts[STEP]),
    ]
    return Crossed(pairs, across.rejects, funnel)


class _Across:
    """One run of the steps; collects what they drop and counts what was proposed, by the step that takes it in."""

    def __init__(self, client: ChatClient, on_progress: Callable[[int, int], None] | None) -> None:
        self.rejects: list[Reject] = []
        self.counts: Counter[str] = Counter()
        self._client, self._on_progress = client, on_progress
        self._call = 0

    def questions(self, crossings: Sequence[Crossing], candidates: int, seed: int) -> list[_Draft]:
        """Return one drawn question a crossing, where one holds by its form and was not asked before."""
        rows = [
            {
                "passages": _passages((crossing.first.text, crossing.second.text)),
                "anchor": fence(crossing.anchor, "object"),
                "count": str(candidates),
            }
            for crossing in crossings
        ]
        drafts: list[_Draft] = []
        seen: dict[str, str] = {}

        def fault(question: str) -> str:
            return question_fault(question) or (REPEATED if normalise(question) in seen else "")

        asked_all = ask_forms(self._client, "cross_question", ProposedQuestions, rows, self._progress())
        for crossing, asked in zip(crossings, asked_all, strict=True):
            if asked.value is None:
                self.rejects.append(unread(PROPOSED, crossing.id, asked))
                continue
            if not asked.value.questions:
                self.rejects.append(Reject(PROPOSED, crossing.id, "no question proposed", crossing.anchor))
                continue
            self.counts.update({PROPOSED: 1, STEP: len(asked.value.questions)})
            proposals = [(" ".join(one.question.split()), one.probability) for one in asked.value.questions]
            drawn, others = draw_question(proposals, candidates, fault, random.Random(f"{seed}:{crossing.id}"))
            for question, reason in others:
                twin = seen[normalise(question)] if reason == REPEATED else ""
                outcome = "duplicate" if twin else "filtered"
                self.rejects.append(Reject(STEP, crossing.id, reason, question, twin, outcome))
            if drawn:
                seen[normalise(drawn)] = crossing.id
                drafts.append(_Draft(crossing, drawn))
        return drafts

    def certify(
        self,
        prompt: str,
        drafts: Sequence[_Draft],
        shown: Callable[[_Draft], Sequence[str]],
        wanted: bool,
        fault: str,
    ) -> list[_Draft]:
        """Return the drafts whose certificate, given the passages `shown`, is the one wanted."""
        rows = [_question(draft) | ({"passage": _passages(shown(draft))} if shown(draft) else {}) for draft in drafts]
        kept: list[_Draft] = []
        for draft, asked in zip(
            drafts, ask_forms(self._client, prompt, Certificate, rows, self._progress()), strict=True
        ):
            if asked.value is None:
                self.rejects.append(unread(STEP, draft.crossing.id, asked))
            elif asked.value.passed is not wanted:
                self._drop(draft.crossing, fault, f"{draft.question} [{asked.value.reason}]")
            else:
                kept.append(draft)
        return kept

    def answers(self, drafts: Sequence[_Draft], teacher: str) -> list[CrossDocumentPair]:
        """Return the pairs with the answers that both passages give."""
        rows = [_question(draft) | {"passage": _passages(draft.texts)} for draft in drafts]
        pairs: list[CrossDocumentPair] = []
        for draft, asked in zip(
            drafts, ask_forms(self._client, "answer", ProposedAnswer, rows, self._progress()), strict=True
        ):
            if asked.value is None:
                self.rejects.append(unread(STEP, draft.crossing.id, asked))
            elif not asked.value.answered or not asked.value.answer.strip():
                self._drop(draft.crossing, "not answered from the two chunks", draft.question)
            else:
                pairs.append(_pair(draft, asked.value, teacher))
        return pairs

    def _progress(self) -> Callable[[int, int], None]:
        """Return a progress report for the next round of calls, as a part of all rounds."""
        call, self._call = self._call, self._call + 1

        def report(done: int, total: int) -> None:
            if self._on_progress:
                percent = 100 * done // total if total else 100
                self._on_progress(100 * call + percent, 100 * _CALLS)

        return report

    def _drop(self, crossing: Crossing, reason: str, text: str) -> None:
        self.rejects.append(Reject(STEP, crossing.id, reason, text))


def _passages(texts: Sequence[str]) -> str:
    return "\n\n".join(fence(text, "passage") for text in texts)


def _question(draft: _Draft) -> dict[str, str]:
    return {"question": fence(draft.question, "question")}


def _pair(draft: _Draft, proposed: ProposedAnswer, teacher: str) -> CrossDocumentPair:
    first, second = draft.crossing.first, draft.crossing.second
    return CrossDocumentPair(
        id="cross-" + digest_json([draft.crossing.id, draft.question])[:12],
        document_id=first.document_id,
        chunk_id=first.id,
        split="test",
        question_type=QUESTION_TYPE,
        question=draft.question,
        answer=proposed.answer.strip(),
        key="",
        aliases=literal_forms(proposed, *draft.texts),
        anchor=draft.crossing.anchor,
        teacher=teacher,
        other_document_id=second.document_id,
        other_chunk_id=second.id,
    )
