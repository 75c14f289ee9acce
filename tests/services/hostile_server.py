"""A chat server that does wrong what servers do wrong, by a plan that depends on the prompt alone."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from iar.methods.digest import canonical_json, digest_json
from tests.services.chat_server import Answer, completion

# Not billed: the client may ask again as often as it likes.
REFUSALS = {
    "429 with Retry-After": Answer(status=429, headers={"Retry-After": "0.05"}),
    "429 in silence": Answer(status=429, body="slow down"),
    "500": Answer(status=500, body="Internal Server Error"),
    "503 with Retry-After": Answer(status=503, headers={"Retry-After": "0.02"}, body='{"error": "loading"}'),
    "529": Answer(status=529, body='{"error": {"message": "overloaded"}}'),
}
# Billed, but no reply: what comes back is no chat completion, or not all of it.
SPOILT = {
    "hang": Answer(delay_seconds=60),
    "slow drip": Answer(trickle=True, body=completion("x" * 2000)),
    "cut off": Answer(cut=True),
    "page": Answer(body="<html>gateway</html>"),
    "list": Answer(body="[]"),
    "cut JSON": Answer(body=completion("x")[:30]),
    "choices of the wrong type": Answer(body='{"choices": {"message": "x"}, "usage": "none"}'),
    "content of the wrong type": Answer(body='{"choices": [{"message": {"content": 7}}], "usage": {}}'),
}
SLOW = frozenset({"hang", "slow drip"})
# How a good reply is wrapped, and what a reply looks like that cannot be read.
WRAPPINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "fenced": lambda text: f"```json\n{text}\n```",
    "among words": lambda text: f"<think>{{}} hm</think>Sure! Here it is: {text} Anything else?",
    "cut off before the last bracket": lambda text: text[:-1],
}
UNREADABLE = ("I would rather not.", '{"unrelated": [1', '["a", "list"]', '{"question": 7, "passed": "yes"}', "null")


@dataclass
class Hostile:
    """A script for `serve`: each body meets its faults in order, then gets `model`'s reply.

    `slow_faults`: how often it may hang, and drip; each costs the client its whole time limit. `storm`: the calls, by
    number from 1, that are refused with 429 whatever they ask.
    """

    model: Callable[[dict[str, Any]], str]
    slow_faults: int = 1
    unreadable: bool = True
    wrappings: Sequence[str] = tuple(WRAPPINGS)
    storm: range = range(0)
    billed_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    delivered: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: dict[str, list[str]] = {}
        self._planned: Counter[str] = Counter()

    def __call__(self, body: dict[str, Any], number: int) -> Answer:
        with self._lock:
            if number in self.storm:
                self.met["storm"] += 1
                return REFUSALS["429 in silence"]
            text = canonical_json(body)
            plan = self._plans.setdefault(text, self._plan(text))
            if plan:
                self.met[fault := plan.pop(0)] += 1
                self.billed_calls += fault in SPOILT
                return SPOILT.get(fault) or REFUSALS[fault]
            return self._reply(body, text)

    def _plan(self, text: str) -> list[str]:
        dice = random.Random(digest_json(text))
        names = [*REFUSALS, *SPOILT]
        plan = []
        for fault in dice.choices(names, k=dice.randrange(4)):
            self._planned[fault] += 1
            if fault not in SLOW or self._planned[fault] <= self.slow_faults:
                plan.append(fault)
        return plan

    def _reply(self, body: dict[str, Any], text: str) -> Answer:
        dice = random.Random(digest_json([text, "reply"]))
        first = "could not be read" not in body["messages"][-1]["content"]
        if self.unreadable and first and dice.random() < 0.25:
            said = dice.choice(UNREADABLE)
            self.met["unreadable"] += 1
        else:
            self.met[wrapping := dice.choice(self.wrappings)] += 1
            said = WRAPPINGS[wrapping](self.model(body))
        tokens = dice.randrange(10, 900), dice.randrange(1, 90)
        self.billed_calls += 1
        self.prompt_tokens += tokens[0]
        self.completion_tokens += tokens[1]
        self.delivered[text] += 1
        return Answer(body=completion(said, *tokens))
