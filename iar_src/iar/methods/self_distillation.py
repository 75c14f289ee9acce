"""SDFT (Yang et al. 2402.13669): the model to be trained first writes each training answer in its own words.

A rewrite is kept only where it is an answer by itself: whole, not about the reference or the rewriting, and, where
the words that decide are known, with these words in it. Else the original stays.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from iar.methods.grading import RULES, Grading
from iar.methods.objectives import fill
from iar.methods.reply_json import after_thinking
from iar.methods.textnorm import normalise
from iar.records import QAPair, Reply

REWRITE_PROMPT = (
    "Below is a question with a reference answer. Answer the question in your own words, with the reference answer "
    "as a guide. Write the answer and nothing else.\n\nQuestion: {question}\n\nReference answer: {answer}"
)
CHECK = RULES["rule:exact"]

# What a model says about the task instead of doing it. A phrase that question or reference have is the documents' own.
# A single word is not enough: a library has a reference section, and somebody answers.
TALK_ENGLISH = (
    r"reference (?:answer|response|text)",
    r"\b(?:the|as a|as) reference(?=\s*(?:[^\w\s]|$)|"
    r"\s+(?:says?|said|states?|stated|mentions?|gives?|tells?|notes?|given|provided|above|is|was)\b)",
    r"\b(?:according to|based on|as per) the (?:reference|answer|guide|(?:\w+ )?(?:provided|given|above|following))\b",
    r"\b(?:stated|described|given|said|provided|mentioned|noted) in the reference\b",
    r"(?:provided|given|original|above|following|correct) (?:answer|response)", r"\banswer above\b",
    r"(?:my|your|our) (?:own )?(?:answer|response|words|version|turn)", r"own words",
    r"(?:^\W*(?:(?:to )?put )?|\b(?:say|said|put) (?:it|this|that) )"
    r"in (?:other|simpler|plainer|different) (?:words|terms)\b",
    r"re-?writ(?:e|es|ing|ten)", r"re-?phras(?:e|es|ed|ing)", r"paraphras\w*", r"as (?:a|my) guide",
    r"(?:the|this|your) question\b", r"here(?:'s| is) (?:the|an|a|my) ",
    r"\b(?:question|answer|response|rewrite) ?:", r"^\W*(?:the )?reference ?:", r"as an? (?:ai|language model)",
    r"</?think>",
)  # fmt: skip
# In both scripts.
TALK_CHINESE = (
    r"[参參]考(?:答案|回答|答[复覆])", r"(?:根[据據]|依[据據]|按照|基[于於]|如)[参參]考",
    r"(?:改[写寫]|重[写寫]|改述|重述|[复複]述)(?:[后後]|版|如下|的?(?:答案|回答|答[复覆]|[结結]果|句子))",
    r"用(?:我|你|您)?自己的(?:[话話]|[语語]言来?來?(?:回答|表[达達]|[说說]))",
    r"^\W*(?:[换換]句[话話][说說]|[换換]言之|[换換]一?[个個]?[说說]法)",
    r"^\W*(?:(?:最[终終]|正[确確]|我的|[简簡]短)的?)?"
    r"(?:[问問][题題]|答案?|回答|答[复覆]|解答|[参參]考|改[写寫]|重[写寫])\s*[:：]",
    r"以下(?:是|[为為]).{0,12}?(?:答案|回答|答[复覆]|改[写寫]|版本)",
    r"(?:根[据據]|依[据據]|按照|基[于於])(?:上述|以上|所?[给給]|[您你]?提供)",
    r"(?:原|上述|以上|提供的|[给給]定的|[标標][准準]|正[确確])(?:答案|回答)", r"[您你]的(?:[问問][题題]|回答|答案)",
    r"作[为為]一?[个個名款位]?(?:AI|人工智[能慧]|大?型?[语語]言模型)",
)  # fmt: skip
TALKS = tuple(re.compile(pattern, re.IGNORECASE | re.MULTILINE) for pattern in TALK_ENGLISH + TALK_CHINESE)


@dataclass(frozen=True)
class Rewrite:
    """What came of one training answer: the answer to train on, the model's own words, and why they were refused.

    `rewrite` is the reply without the thoughts of a reasoning model. `refused` is "" where it was taken. `checked`:
    the words that decide were looked for in it.
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
    rewrite = after_thinking(reply.text).strip()
    refused = "cut off at the token limit" if reply.truncated else refusal(pair, rewrite)
    return Rewrite(pair.id, pair.answer if refused else rewrite, rewrite, refused, bool(pair.key))


def refusal(pair: QAPair, rewrite: str) -> str:
    """Return why a whole rewrite cannot stand for the reference answer; "" where it can."""
    if not normalise(rewrite):
        return "empty"
    known = f"{pair.question}\n{pair.answer}"
    if any(talk.search(rewrite) and not talk.search(known) for talk in TALKS):
        return "talks about the task"
    if pair.key and CHECK.grade(Grading(pair.question, rewrite, pair.key, pair.aliases)) < 1:
        return "lost the answer"
    return ""


def acceptance(rewrites: Sequence[Rewrite]) -> dict[str, float]:
    """Return the share of rewrites that were taken, how many there were, and how many were refused for each reason.

    The share says how much self-distillation there really is.
    """
    refused = Counter(rewrite.refused for rewrite in rewrites if rewrite.refused)
    rate = 1 - refused.total() / len(rewrites) if rewrites else 0.0
    reasons = {f"refused/{reason}": float(count) for reason, count in sorted(refused.items())}
    return {"acceptance_rate": rate, "rewrites": float(len(rewrites))} | reasons
