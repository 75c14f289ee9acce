"""How a reply to an item of the user's own suite is graded where no judge votes: by rule, pattern or choice."""

from typing import Any

import regex

from iar.methods.grading import RULES, Grading
from iar.methods.mmlu import find_letter

JUDGE = "judge"
PATTERN_SECONDS = 1.0
"""For one pattern on one reply: a few thousand characters take microseconds, unless the pattern backtracks."""
VERSIONS = {"regex": "1", "choice": "1"}
"""Of what grades here beside the rules; another one when a grade may change."""
UNPARSED, TOO_SLOW = "unparsed", "pattern took too long"


def grade_reply(prompt: str, reference: dict[str, Any], reply: str) -> tuple[float | None, str]:
    """Return the score in [0, 1] and a note; None where a pattern came to no end.

    `reference` holds `verifier`: a rule's name with reference and aliases, `regex` with a pattern that must be found,
    or `choice` with choices and the answer's letter.
    """
    verifier = reference["verifier"]
    if verifier == "regex":
        return _grade_pattern(reference["pattern"], reply)
    if verifier == "choice":
        letter = find_letter(reply, reference["choices"])
        return float(letter == reference["answer"]), "" if letter else UNPARSED
    grading = Grading(prompt, reply, reference["reference"], tuple(reference["aliases"]))
    return RULES[verifier].grade(grading), ""


def _grade_pattern(pattern: str, reply: str) -> tuple[float | None, str]:
    try:
        return float(regex.search(pattern, reply, timeout=PATTERN_SECONDS) is not None), ""
    except TimeoutError:
        return None, TOO_SLOW
