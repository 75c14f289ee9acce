"""The teacher that is a language model: six steps from chunks to questions with reference answers.

The steps are those of the method's QA build (anchors, applicable types, questions, verification, answers) and the
rewrite inputs for reconstruction. Whatever a model proposes is checked here before it is kept.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from iar.config import Endpoint, QaBuildSection
from iar.errors import PermanentError
from iar.methods.digest import digest_json
from iar.methods.prompting import fence
from iar.methods.question_form import anchor_fault, locate_quote, question_fault
from iar.methods.shared_anchors import Crossing
from iar.methods.teaching import Crossed, Retold, TeacherOutput, funnel_step
from iar.methods.textnorm import normalise
from iar.methods.verbalised_sampling import draw_question
from iar.records import Anchor, Chunk, Document, QAPair, Reject
from iar.services.llm import ChatClient, Patience
from iar.services.llm_ask import Asked, load_prompt
from iar.services.llm_cross_document import ask_across
from iar.services.llm_retellings import paraphrase, relate
from iar.services.llm_rewrite_inputs import write_rewrite_inputs
from iar.services.llm_teacher_replies import (
    REPEATED,
    Certificate,
    Choices,
    Form,
    ProposedAnchors,
    ProposedAnswer,
    ProposedQuestions,
    ask_forms,
    literal_forms,
    unread,
)

STEPS = ("anchors", "types", "question", "self_contained", "grounded", "answer", "rewrite_inputs")
PROMPTS = (
    *STEPS[:-1], "skeleton", "outline", "summary", "cross_question", "paraphrase", "relations", "faithful",
)  # fmt: skip
# Chunks that the teacher named an object of, objects that it asked something about; what it proposed is counted after.
ANCHORED, PROPOSED = "anchored", "proposed"
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Draft:
    """A question on its way: the anchor it is about, its type and its text so far."""

    chunk: Chunk
    anchor: Anchor
    question_type: str = ""
    question: str = ""

    @property
    def id(self) -> str:
        return f"{self.chunk.id}:{self.anchor.start}-{self.anchor.end}"


class LlmTeacher:
    """Makes the records of the QA build through one chat server; `name` changes with model, sampling and prompts."""

    def __init__(
        self,
        endpoint: Endpoint,
        cache_folder: Path,
        patience: Patience | None = None,
        settings: QaBuildSection | None = None,
    ) -> None:
        prompts = [load_prompt(name).version for name in PROMPTS]
        sampling = [endpoint.weights, endpoint.temperature, endpoint.top_p, endpoint.max_tokens]
        self.name = f"llm:{endpoint.model}@{digest_json([prompts, sampling])[:8]}"
        self._client = ChatClient(endpoint, cache_folder, patience)
        self._settings = settings or QaBuildSection()

    def build(
        self,
        documents: Sequence[Document],
        chunks: Sequence[Chunk],
        anchors_per_chunk: int,
        seed: int,
        on_progress: OnProgress | None = None,
    ) -> TeacherOutput:
        """Return anchors, pairs, skeletons and everything dropped on the way, in the order of `chunks`.

        `seed` draws among proposed questions; the cache makes a reply repeatable, not the server. Raises UserError and
        TemporaryError as `ChatClient.complete` does; another call with the same input goes on from there.
        """
        candidates = self._settings.question_candidates
        lesson = _Lesson(self._client, documents, on_progress)
        anchored = lesson.find_anchors(chunks, anchors_per_chunk)
        typed = lesson.choose_types(anchored)
        asked = lesson.write_questions(typed, candidates, seed)
        verified = lesson.verify(asked)
        pairs = lesson.answer(verified, self.name)
        anchors = [draft.anchor for draft in anchored]
        kinds, report = self._settings.rewrite_inputs, lesson.progress_of("rewrite_inputs")
        rewrite_inputs = write_rewrite_inputs(self._client, documents, chunks, anchors, kinds, self.name, report)
        counts = lesson.counts
        steps = [
            (ANCHORED, "chunk", len(chunks), counts[ANCHORED]),
            ("anchors", "anchor", counts["anchors"], len(anchored)),
            ("applicable", "anchor", len(anchored), len(typed)),
            (PROPOSED, "anchor", len(typed), counts[PROPOSED]),
            ("questions", "question", counts["questions"], len(asked)),
            ("verified", "question", len(asked), len(verified)),
            ("answered", "question", len(verified), len(pairs)),
        ]
        funnel = [funnel_step(step, unit, kept, lesson.rejects, in_) for step, unit, in_, kept in steps]
        return TeacherOutput(anchors, pairs, rewrite_inputs, lesson.rejects, funnel)

    def retell(
        self,
        documents: Sequence[Document],
        chunks: Sequence[Chunk],
        anchors: Sequence[Anchor],
        seed: int,
        count_tokens: Callable[[str], int] | None = None,
        on_progress: OnProgress | None = None,
    ) -> Retold:
        """Return the retellings that the settings ask for.

        Raises as `build` does, and PermanentError for paraphrases without `count_tokens`.
        """
        settings, client, made = self._settings, self._client, Retold()
        if "paraphrase" in settings.augment:
            if count_tokens is None:
                raise PermanentError("paraphrases are bounded in tokens, and no tokenizer was given; mend the pipeline")
            made.retellings.extend(paraphrase(client, documents, count_tokens, self.name, made.rejects, on_progress))
        if "relations" in settings.augment:
            most = settings.relations_per_document
            made.retellings.extend(
                relate(client, documents, chunks, anchors, most, self.name, seed, made.rejects, on_progress)
            )
        return made

    def ask_across(
        self,
        crossings: Sequence[Crossing],
        seed: int,
        on_progress: OnProgress | None = None,
    ) -> Crossed:
        """Return at most one question a crossing. Raises as `build` does."""
        candidates = self._settings.question_candidates
        return ask_across(self._client, crossings, candidates, self.name, seed, on_progress)


class _Lesson:
    """One run of the steps; collects what they drop and counts what was proposed, by the step that takes it in."""

    def __init__(self, client: ChatClient, documents: Sequence[Document], on_progress: OnProgress | None) -> None:
        self.rejects: list[Reject] = []
        self.counts: Counter[str] = Counter()
        self._client = client
        self._documents = {document.id: document for document in documents}
        self._on_progress = on_progress

    def find_anchors(self, chunks: Sequence[Chunk], most: int) -> list[_Draft]:
        """Step 1: literal, citable, distinct quotes, at most `most` a chunk. A chunk without any is no lost anchor."""
        rows = [{"title": self._title(chunk), "passage": _passage(chunk.text), "most": str(most)} for chunk in chunks]
        drafts: list[_Draft] = []
        for chunk, asked in zip(chunks, self._ask("anchors", ProposedAnchors, rows), strict=True):
            if asked.value is None:
                self._drop_unread(ANCHORED, chunk.id, asked)
            elif not asked.value.anchors:
                self._drop(ANCHORED, chunk.id, "no anchor proposed", chunk.text)
            else:
                self.counts.update({ANCHORED: 1, "anchors": len(asked.value.anchors)})
                drafts += self._keep_anchors(chunk, asked.value, most)
        return drafts

    def _keep_anchors(self, chunk: Chunk, proposed: ProposedAnchors, most: int) -> list[_Draft]:
        kept: dict[str, _Draft] = {}
        for proposal in proposed.anchors:
            span = locate_quote(proposal.quote, chunk.text)
            text = chunk.text[slice(*span)] if span else proposal.quote
            fault = "" if span else "no literal quote of the chunk"
            fault = fault or anchor_fault(text)
            twin = kept.get(text.casefold())
            if not fault and twin:
                self._drop_repeated("anchors", chunk.id, "repeated anchor", proposal.quote, twin.id)
                continue
            fault = fault or ("beyond max_anchors" if len(kept) >= most else "")
            if fault or span is None:
                self._drop("anchors", chunk.id, fault, proposal.quote)
                continue
            kind = proposal.kind.strip().casefold()[:40]
            anchor = Anchor(chunk.id, kind, text, chunk.start + span[0], chunk.start + span[1])
            kept[text.casefold()] = _Draft(chunk, anchor)
        return list(kept.values())

    def choose_types(self, drafts: Sequence[_Draft]) -> list[_Draft]:
        """Step 2: the question type each chunk supports for each of its anchors."""
        groups = [list(group) for _, group in groupby(drafts, key=lambda draft: draft.chunk.id)]
        rows = [self._row(group[0]) | {"anchors": _numbered(group)} for group in groups]
        typed: list[_Draft] = []
        for group, asked in zip(groups, self._ask("types", Choices, rows), strict=True):
            if asked.value is None:
                for draft in group:
                    self._drop_unread("applicable", draft.id, asked)
                continue
            chosen = {choice.anchor: choice.question_type for choice in reversed(asked.value.choices)}
            for number, draft in enumerate(group, 1):
                if chosen.get(number, "none") == "none":
                    self._drop("applicable", draft.id, "no applicable question type", draft.anchor.text)
                else:
                    typed.append(replace(draft, question_type=chosen[number]))
        return typed

    def write_questions(self, drafts: Sequence[_Draft], candidates: int, seed: int) -> list[_Draft]:
        """Step 3: one question an anchor, drawn among those proposed that do not by their form need the document."""
        rows = [
            self._row(draft)
            | {
                "anchor": fence(draft.anchor.text, "object"),
                "question_type": draft.question_type.replace("_", " "),
                "count": str(candidates),
            }
            for draft in drafts
        ]
        kept: list[_Draft] = []
        seen: dict[tuple[str, str], str] = {}
        for draft, asked in zip(drafts, self._ask("question", ProposedQuestions, rows), strict=True):
            if asked.value is None:
                self._drop_unread(PROPOSED, draft.id, asked)
                continue
            if not asked.value.questions:
                self._drop(PROPOSED, draft.id, "no question proposed", draft.anchor.text)
                continue

            def fault(question: str, chunk_id: str = draft.chunk.id) -> str:
                repeated = (chunk_id, normalise(question)) in seen
                return question_fault(question) or (REPEATED if repeated else "")

            self.counts.update({PROPOSED: 1, "questions": len(asked.value.questions)})
            proposals = [(" ".join(one.question.split()), one.probability) for one in asked.value.questions]
            drawn, others = draw_question(proposals, candidates, fault, random.Random(f"{seed}:{draft.id}"))
            for question, reason in others:
                if reason == REPEATED:
                    twin = seen[draft.chunk.id, normalise(question)]
                    self._drop_repeated("questions", draft.id, reason, question, twin)
                else:
                    self._drop("questions", draft.id, reason, question)
            if drawn:
                seen[draft.chunk.id, normalise(drawn)] = draft.id
                kept.append(replace(draft, question=drawn))
        return kept

    def verify(self, drafts: Sequence[_Draft]) -> list[_Draft]:
        """Step 4: two certifiers; the one of self-containedness sees the question and nothing else."""
        drafts = self._certify("self_contained", "not self-contained", drafts, [_question(draft) for draft in drafts])
        grounded = [_question(draft) | {"passage": _passage(draft.chunk.text)} for draft in drafts]
        return self._certify("grounded", "not grounded in the chunk", drafts, grounded)

    def _certify(
        self, prompt: str, fault: str, drafts: Sequence[_Draft], rows: Sequence[Mapping[str, str]]
    ) -> list[_Draft]:
        passed: list[_Draft] = []
        for draft, asked in zip(drafts, self._ask(prompt, Certificate, rows), strict=True):
            if asked.value is None:
                self._drop_unread("verified", draft.id, asked)
            elif not asked.value.passed:
                self._drop("verified", draft.id, fault, f"{draft.question} [{asked.value.reason}]")
            else:
                passed.append(draft)
        return passed

    def answer(self, drafts: Sequence[_Draft], teacher: str) -> list[QAPair]:
        """Step 5: an answer from the same chunk; short forms count only where the chunk has them literally."""
        rows = [_question(draft) | {"passage": _passage(draft.chunk.text)} for draft in drafts]
        pairs: list[QAPair] = []
        for draft, asked in zip(drafts, self._ask("answer", ProposedAnswer, rows), strict=True):
            if asked.value is None:
                self._drop_unread("answered", draft.id, asked)
            elif not asked.value.answered or not asked.value.answer.strip():
                self._drop("answered", draft.id, "not answered from the chunk", draft.question)
            else:
                pairs.append(_pair(draft, asked.value, teacher))
        return pairs

    def _ask(self, step: str, form: type[Form], rows: Sequence[Mapping[str, str]]) -> list[Asked[Form]]:
        return ask_forms(self._client, step, form, rows, self.progress_of(step))

    def progress_of(self, step: str) -> Callable[[int, int], None]:
        """Return a progress report for one step, as percent of that step out of all."""

        def report(done: int, total: int) -> None:
            if self._on_progress:
                percent = 100 * done // total if total else 100
                self._on_progress(100 * STEPS.index(step) + percent, 100 * len(STEPS))

        return report

    def _title(self, chunk: Chunk) -> str:
        return fence(self._documents[chunk.document_id].title, "title")

    def _row(self, draft: _Draft) -> dict[str, str]:
        return {"title": self._title(draft.chunk), "passage": _passage(draft.chunk.text)}

    def _drop(self, step: str, item_id: str, reason: str, text: str) -> None:
        self.rejects.append(Reject(step, item_id, reason, text))

    def _drop_repeated(self, step: str, item_id: str, reason: str, text: str, twin: str) -> None:
        self.rejects.append(Reject(step, item_id, reason, text, twin, "duplicate"))

    def _drop_unread(self, step: str, item_id: str, asked: Asked[Form]) -> None:
        self.rejects.append(unread(step, item_id, asked))


def _passage(text: str) -> str:
    return fence(text, "passage")


def _question(draft: _Draft) -> dict[str, str]:
    return {"question": fence(draft.question, "question")}


def _numbered(group: Sequence[_Draft]) -> str:
    return fence("\n".join(f"{number}. {draft.anchor.text}" for number, draft in enumerate(group, 1)), "objects")


def _pair(draft: _Draft, proposed: ProposedAnswer, teacher: str) -> QAPair:
    return QAPair(
        id="qa-" + digest_json([draft.chunk.id, draft.question])[:12],
        document_id=draft.chunk.document_id,
        chunk_id=draft.chunk.id,
        split="",
        question_type=draft.question_type,
        question=draft.question,
        answer=proposed.answer.strip(),
        key="",
        aliases=literal_forms(proposed, draft.chunk.text),
        anchor=draft.anchor.text,
        teacher=teacher,
    )
