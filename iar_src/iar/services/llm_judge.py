"""A judge that is a language model: shows question, reference and reply, reads back 0, 0.5 or 1."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from iar.config import SHOWN_TO_JUDGES, Endpoint, JudgeServer
from iar.methods.digest import digest_json
from iar.methods.grading import Grading
from iar.methods.prompting import fence, fill
from iar.methods.reply_json import after_thinking, find_objects
from iar.services.judges import Judgement
from iar.services.llm import ChatClient, ChatRequest, Patience
from iar.services.llm_ask import Asked, ask, load_prompt, read_prompt
from iar.services.llm_budget import money
from iar.services.reply_cache import Spent

_SCORES = {0: 0.0, 0.5: 0.5, 1: 1.0}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "score": {"type": "number", "enum": [0, 0.5, 1]}},
    "required": ["reason", "score"],
    "additionalProperties": False,
}
_WORDLESS = "not asked: the reply has no letter and no digit"


class LlmJudge:
    """One judge of the panel; `version` changes with the prompt, the model or its sampling."""

    def __init__(
        self, endpoint: Endpoint, cache_folder: Path, patience: Patience | None = None, books: Path | None = None
    ) -> None:
        self.name = endpoint.name
        own = endpoint.prompt if isinstance(endpoint, JudgeServer) else ""
        self._prompt = read_prompt(_with_places(own)) if own else load_prompt("judge")
        sampling = [endpoint.weights, endpoint.temperature, endpoint.top_p, endpoint.max_tokens]
        self.version = digest_json([self._prompt.version, *sampling])[:12]
        self._client = ChatClient(endpoint, cache_folder, patience, books)

    def judge_many(
        self, gradings: Sequence[Grading], on_progress: Callable[[int, int], None] | None = None
    ) -> list[Judgement]:
        """Return one judgement a grading, in order.

        A reply without a letter or digit scores 0 unasked: lone punctuation is known to fool judges
        (arXiv 2507.08794). Raises UserError and TemporaryError as `ChatClient.complete` does.
        """
        wordy = [index for index, grading in enumerate(gradings) if _has_words(grading)]
        requests = [self._request(gradings[index]) for index in wordy]
        judgements = [Judgement(0.0, _WORDLESS, "")] * len(gradings)
        for index, asked in zip(wordy, ask(self._client, requests, read_score, on_progress), strict=True):
            judgements[index] = self._judgement(asked)
        return judgements

    def _judgement(self, asked: Asked[float]) -> Judgement:
        tokens = asked.prompt_tokens, asked.completion_tokens
        cost = money(self._client.endpoint, Spent(asked.attempts, *tokens))
        return Judgement(asked.value, asked.raw, asked.error, *tokens, cost, asked.seconds)

    def _request(self, grading: Grading) -> ChatRequest:
        reference = "\n".join(f"- {point}" for point in grading.points) or _reference(grading)
        values = {
            "question": fence(grading.question, "question"),
            "reference": fence(reference, "reference"),
            "reply": fence(grading.reply, "reply"),
        }
        return ChatRequest(self._prompt.system, fill(self._prompt.user, values), _SCHEMA)


def read_score(text: str) -> float:
    """Return the score of the last verdict in a judge's reply. Raises ValueError for anything but 0, 0.5 or 1.

    A verdict outside the complete JSON objects (cut off, or quoted without escapes) makes the
    reply unreadable: the object found beside it may be a quotation of what was graded.
    """
    found = find_objects(after_thinking(text))
    verdicts = [item["score"] for item in found.objects if "score" in item]
    if not verdicts:
        raise ValueError("no JSON object with a score")
    if '"score"' in found.rest:
        raise ValueError("a verdict that is not complete JSON")
    score = verdicts[-1]
    if isinstance(score, bool) or not isinstance(score, int | float) or score not in _SCORES:
        raise ValueError(f"score {str(score)[:40]!r} is not 0, 0.5 or 1")
    return _SCORES[score]


def reread(raw: str) -> float | None:
    """Return the score that an archived raw reply says, None where it is unreadable."""
    try:
        return 0.0 if raw == _WORDLESS else read_score(raw)
    except ValueError:
        return None


def _with_places(prompt: str) -> str:
    """Return a judge's own prompt with places as in the files of this package; in a run file two braces stand ill."""
    for name in SHOWN_TO_JUDGES:
        prompt = prompt.replace(f"{{{name}}}", f"{{{{{name}}}}}")
    return prompt


def _reference(grading: Grading) -> str:
    also = [alias for alias in grading.aliases if alias != grading.reference]
    return grading.reference + "".join(f"\nAlso right: {alias}" for alias in also)


def _has_words(grading: Grading) -> bool:
    """Whether the reply has a letter or digit, or the reference has none either."""
    expected = grading.reference + "".join(grading.points)
    return any(map(str.isalnum, grading.reply)) or not any(map(str.isalnum, expected))
