"""The forms a teacher's replies have, and how a reply is read into one of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from iar.methods.prompting import fill, unfence
from iar.methods.question_form import locate_quote
from iar.methods.reply_json import after_thinking, find_objects, repairs
from iar.records import Reject
from iar.services.llm import ChatClient, ChatRequest
from iar.services.llm_ask import Asked, ask, load_prompt

QuestionType = Literal[
    "fact_extraction",
    "mechanism_explanation",
    "design_motivation",
    "conditions_and_constraints",
    "limitations_and_tradeoffs",
    "comparison_and_relation",
]


REPEATED = "repeated question"
# What a model writes, with the escapes of the prompt's fences undone.
Words = Annotated[str, AfterValidator(unfence)]


class ReplyForm(BaseModel):
    """A JSON object a model must reply with; further keys are ignored, types are not converted."""

    # Servers with strict structured output want every object closed.
    model_config = ConfigDict(strict=True, frozen=True, json_schema_extra={"additionalProperties": False})


class ProposedAnchor(ReplyForm):
    """A literal quote and what kind of object it names."""

    quote: Words
    kind: Words


class ProposedAnchors(ReplyForm):
    """Step 1."""

    anchors: list[ProposedAnchor]


class Choice(ReplyForm):
    """An anchor by number, from 1, and the question type the chunk supports for it."""

    anchor: int
    question_type: QuestionType | Literal["none"]


class Choices(ReplyForm):
    """Step 2."""

    choices: list[Choice]


class ProposedQuestion(ReplyForm):
    """A question and the model's own probability of it."""

    question: Words
    probability: float


class ProposedQuestions(ReplyForm):
    """Step 3, about one chunk or two."""

    questions: list[ProposedQuestion]


class Certificate(ReplyForm):
    """Step 4, of either certifier; the reason comes first so that it is thought before the verdict."""

    reason: Words
    passed: bool


class ProposedAnswer(ReplyForm):
    """Step 5."""

    answered: bool
    answer: Words
    short_forms: list[Words]


class Points(ReplyForm):
    """Step 6: the lines of a skeleton or outline, the sentences of a summary."""

    points: list[Words]


class Paraphrase(ReplyForm):
    """A passage in another register."""

    text: Words


class Relations(ReplyForm):
    """What a passage says of some objects in regard to each other."""

    related: bool
    text: Words


Form = TypeVar("Form", bound=ReplyForm)


def literal_forms(proposed: ProposedAnswer, *passages: str) -> tuple[str, ...]:
    """Return the short forms of an answer that stand in one of the passages, as they stand there."""
    spans = [(locate_quote(form, passage), passage) for form in proposed.short_forms for passage in passages]
    return tuple(dict.fromkeys(passage[slice(*span)] for span, passage in spans if span))


def unread(step: str, item_id: str, asked: Asked[Form]) -> Reject:
    """Return the reject of an item whose reply has no value: it failed, nothing was found wrong with it."""
    if asked.raw:
        return Reject(step, item_id, "unreadable reply", f"{asked.error} [{asked.raw}]", outcome="failed")
    return Reject(step, item_id, "no reply", asked.error, outcome="failed")


@cache
def schema_of(form: type[ReplyForm]) -> dict[str, Any]:
    """Return the JSON schema a server is asked to keep to."""
    return form.model_json_schema()


def reader_of(form: type[Form]) -> Callable[[str], Form]:
    """Return a function that reads a reply as `form`: its last complete object, else a cut-off one's whole parts.

    The function raises ValueError with the reason.
    """

    def read(text: str) -> Form:
        spoken = after_thinking(text)
        fault = "no JSON object"
        for data in [*reversed(find_objects(spoken).objects), *repairs(spoken)]:
            try:
                return _storable(form.model_validate(data))
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ValueError(fault)

    return read


def _storable(value: Form) -> Form:
    """Return a reply that a file can take. Raises ValueError for half a surrogate pair, which JSON may smuggle in."""
    try:
        json.dumps(value.model_dump(), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair in a string") from error
    return value


def ask_forms(
    client: ChatClient,
    prompt_name: str,
    form: type[Form],
    rows: Sequence[Mapping[str, str]],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Asked[Form]]:
    """Return one result a row: the prompt filled with the row's values, the reply read as `form`."""
    prompt = load_prompt(prompt_name)
    requests = [ChatRequest(prompt.system, fill(prompt.user, row), schema_of(form)) for row in rows]
    return ask(client, requests, reader_of(form), on_progress)
