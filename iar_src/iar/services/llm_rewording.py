"""Questions asked another way by the teacher, where it is a language model."""

from collections.abc import Sequence
from pathlib import Path

from iar.config import Endpoint
from iar.methods.probes import reword
from iar.methods.prompting import fence
from iar.methods.textnorm import normalise
from iar.records import QAPair
from iar.services.llm import ChatClient
from iar.services.llm_teacher_replies import ReplyForm, Words, ask_forms


class Rewording(ReplyForm):
    """The same question in other words."""

    question: Words


def reword_by_teacher(teacher: Endpoint, cache_folder: Path, pairs: Sequence[QAPair]) -> list[str]:
    """Return each question in the teacher's words; by rules where its reply is no other question, or tells the answer.

    Raises UserError and TemporaryError as `ChatClient.complete` does.
    """
    rows = [{"question": fence(pair.question, "question")} for pair in pairs]
    asked = ask_forms(ChatClient(teacher, cache_folder), "reword", Rewording, rows)
    made = [one.value.question.strip() if one.value else "" for one in asked]
    return [text if _is_sound(text, pair) else reword(pair.question) for text, pair in zip(made, pairs, strict=True)]


def _is_sound(text: str, pair: QAPair) -> bool:
    said, question = normalise(text), normalise(pair.question)
    tells = [normalise(answer) for answer in (pair.key, *pair.aliases) if answer]
    told = any(answer in said and answer not in question for answer in tells)
    return text.endswith(("?", "？", "؟")) and said != question and not told
