"""The teacher's other wordings: kept where they are another question that does not tell the answer."""

import json
from dataclasses import replace
from pathlib import Path

from iar.methods.probes import reword
from iar.services.llm_rewording import reword_by_teacher
from tests.examination import questions
from tests.services.chat_server import Answer, serve, user_of

PAIR = replace(questions("test")[0], question="Who opened the harbour?", key="Tora Lind", aliases=("T. Lind",))
SAID = {
    "good": "By whom was the harbour opened?",
    "same": "Who opened  the harbour?",
    "told": "Did Tora Lind open the harbour?",
    "alias": "Did T. Lind open the harbour?",
    "flat": "The harbour was opened.",
}


def test_only_another_question_is_kept_and_the_rest_is_worded_by_rule(tmp_path: Path) -> None:
    pairs = [replace(PAIR, id=name, question=f"{PAIR.question[:-1]} {name}?") for name in SAID]

    def teach(body: dict[str, object], _: int) -> Answer:
        name = next(name for name in SAID if f"{name}?" in user_of(body))
        said = SAID[name] if name != "same" else f"Who opened the  harbour {name}?"
        return Answer(json.dumps({"question": said}))

    with serve(teach) as server:
        made = reword_by_teacher(server.endpoint(), tmp_path, pairs)
        again = reword_by_teacher(server.endpoint(), tmp_path, pairs)
        assert len(server.calls) == len(SAID)
    assert made == again == [SAID["good"], *(reword(pair.question) for pair in pairs[1:])]
