"""SDFT (Yang et al. 2402.13669): the model to be trained first writes each training answer in its own words.

A rewrite is kept only where it is an answer by itself: whole, not about the reference or the rewriting, and, where
the words that decide are known, with these words in it. Else the original stays.
"""

import re
from dataclasses import dataclass

from iar.methods.grading import RULES, Grading
from iar.methods.objectives import fill
from iar.methods.textnorm import normalise
from iar.records import QAPair, Reply

REWRITE_PROMPT = (
    "Below is a question with a reference answer. Answer the question in your own words, with the reference answer "
    "as a guide. Write the answer and nothing else.\n\nQuestion: {question}\n\nReference answer: {answer}"
)
CHECK = RULES["rule:exact"]

# What a model says about the task instead of doing it. Words of the question or the reference are the documents' own.
TALK = (
    r"reference (?:answer|response|text)", r"(?:provided|given|original|above|following|correct) (?:answer|response)",
    r"(?:my|your|our) (?:own )?(?:answer|response|words|version|turn)", r"own words", r"re-?writ(?:e|es|ing|ten)",
    r"re-?phras(?:e|es|ed|ing)", r"paraphras\w*", r"according to the (?:reference|answer|guide)",
    r"(?:as|the) (?:a )?reference\b", r"as (?:a|my) guide", r"(?:the|this|your) question\b",
    r"here(?:'s| is) (?:the|an|a|my) ",
    r"\b(?:question|answer|response|rewrite) ?:", r"as an? (?:ai|language model)",
)  # fmt: skip
TALKS = tuple(re.compile(pattern, re.IGNORECASE) for pattern in TALK)


@dataclass(frozen=True)
class Rewrite:
    """What came of one training answer: the answer to train on, the model's own words, and why they were refused.

    `refused` is "" where the rewrite was taken. `checked`: the words that decide were looked for in it.
    """

    id: str
    answer: str
    rewrite: str
    refused: str
    checked: bool


def rewrite_prompt(pair: QAPair) -> str:
    """Return what the model is asked for one training pair: question and reference answer are both shown."""
    return fill(REWRITE_PROMPT, question=pair.question, answer=pair.answer)


def judged_rewrite(pair: QAPair, reply: Reply) -> Rewrite:
    """Return the rewrite, or the original with the reason."""
    refused = refusal(pair, reply)
    return Rewrite(pair.id, pair.answer if refused else reply.text, reply.text, refused, bool(pair.key))


def refusal(pair: QAPair, reply: Reply) -> str:
    """Return why a rewrite cannot stand for the reference answer; "" where it can."""
    if not normalise(reply.text):
        return "empty"
    if reply.truncated:
        return "cut off at the token limit"
    known = f"{pair.question}\n{pair.answer}"
    if any(talk.search(reply.text) and not talk.search(known) for talk in TALKS):
        return "talks about the task"
    if pair.key and CHECK.grade(Grading(pair.question, reply.text, pair.key, pair.aliases)) < 1:
        return "lost the answer"
    return ""


def acceptance_rate(rewrites: list[Rewrite]) -> float:
    """Return the share of rewrites that were taken; it says how much self-distillation there really is."""
    return sum(not rewrite.refused for rewrite in rewrites) / max(1, len(rewrites))
