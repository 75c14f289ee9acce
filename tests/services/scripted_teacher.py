"""A model that takes every step of the teacher by rules, behind a real server; prompts are told apart by their text."""

import html
import json
import re
from collections.abc import Callable

from iar.services.llm_ask import load_prompt
from iar.services.llm_teacher import PROMPTS
from tests.services.chat_server import Answer, user_of

JOINS = "Which bond joins"
PARAPHRASED = "It is told:"


def between(text: str, tag: str) -> str:
    """Return the fenced data as a model would understand it."""
    return html.unescape(text.partition(f"<{tag}>\n")[2].partition(f"\n</{tag}>")[0])


def step_of(body: dict) -> str:
    return next(name for name in PROMPTS if load_prompt(name).system == body["messages"][0]["content"])


def good_model(body: dict, _: int) -> Answer:
    user = user_of(body)
    passage = between(user, "passage")
    names = re.findall(r"[A-Z]\w+ [A-Z]\w+|\d{4}|Velm|Greywether", passage)
    objects = re.findall(r"^(\d+)\. (.+)$", between(user, "objects"), re.MULTILINE)
    question = between(user, "question")
    subject = question.partition(" of ")[2].partition(" in ")[0]
    replies: dict[str, Callable[[], dict[str, object]]] = {
        "anchors": lambda: {"anchors": [{"quote": name, "kind": "Name"} for name in names]},
        "types": lambda: {"choices": [{"anchor": int(n), "question_type": "fact_extraction"} for n, _ in objects]},
        "question": lambda: {"questions": [proposal(f"What is known of {between(user, 'object')} in Velm?", 1)]},
        "self_contained": lambda: {"reason": "names all", "passed": "<passage>" not in user},
        "grounded": lambda: {"reason": "stated", "passed": _stated(question, subject, user)},
        "answer": lambda: {
            "answered": True,
            "answer": passage.strip(),
            "short_forms": [passage.split()[0], "Atlantis"],
        },
        "skeleton": lambda: {"points": ["harbour", "lamp"]},
        "outline": lambda: {"points": ["lamp"]},
        "summary": lambda: {"points": ["A lamp."]},
        "cross_question": lambda: {"questions": [proposal(f"{JOINS} {' and '.join(own_words(user))}?", 0.5)]},
        "paraphrase": lambda: {"text": f"{PARAPHRASED} {passage}"},
        "relations": lambda: {"related": "Osk" not in user, "text": f"Both stand in: {passage}"},
        "faithful": lambda: {"reason": "same", "passed": True},
    }
    return Answer(json.dumps(replies[step_of(body)]()))


def proposal(question: str, probability: float) -> dict[str, object]:
    return {"question": question, "probability": probability}


def asking(*questions: str) -> str:
    return json.dumps({"questions": [proposal(question, 0.1) for question in questions]})


def own_words(user: str) -> list[str]:
    """Return the longest word of each passage."""
    passages = re.findall(r"<passage>\n(.*?)\n</passage>", user, re.DOTALL)
    return [max(re.findall(r"\b[a-z]+\b", passage), key=len) for passage in passages]


def _stated(question: str, subject: str, user: str) -> bool:
    if not question.startswith(JOINS):
        return subject in between(user, "passage")
    shown = user.partition("<question>")[0]
    return all(word in shown for word in question.removeprefix(JOINS).rstrip("?").split(" and "))
