"""The evaluations that no training data may give away: our own questions, the general suites, and files of the user."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from iar.config import RunFile
from iar.errors import UserError
from iar.methods.contamination import Evaluation, TrainingText
from iar.methods.digest import digest_text
from iar.methods.textnorm import words_of
from iar.records import QAPair
from iar.services.lm_eval_tasks import task_prompts
from iar.services.source_rows import HubSplit, SourceRow, is_file, source_rows
from iar.services.user_suites import ID_DIGITS, SuiteFile, read_suite

HUBS = {
    "ifeval": HubSplit("google/IFEval", "train"),
    "mmlu": HubSplit("google/IFEval", "test", "all"),
    "msbench": HubSplit("google/IFEval", "test"),
}
OWN, GENERAL = ("validation", "test"), tuple(HUBS)
USER_FILES = HubSplit("google/IFEval", "test")
RARE_SHARE = 0.005
# Under which name a row has what is asked, and what it shows beside that.
ASKED = ("prompt", "question", "instruction")
SHOWN = ("target", "answer", "response", "output", "completion", "input", "context", "text")


def own_evaluation(split: str, pairs: Iterable[QAPair]) -> Evaluation:
    """Return our own questions of a split; those of the test are sealed."""
    return Evaluation(split, tuple((pair.id, pair.question) for pair in pairs), own=True, sealed=split == "test")


def general_evaluations(run_file: RunFile) -> list[Evaluation]:
    """Return ifeval, mmlu, msbench, the further suites and the files of `qa_build.evals`.

    A hub that does not answer leaves one unread. Only prompts are read, so none of the libraries behind the three
    suites is needed. Raises UserError for a place that is
    neither file nor hub id, and for a malformed row.
    """
    places = {suite: getattr(run_file.evaluate, suite) for suite in GENERAL}
    found = [_evaluation(suite, place, f"evaluate.{suite}", HUBS[suite]) for suite, place in places.items()]
    found += [_suite_evaluation(place, one) for place, one in _own_suites(run_file)]
    found += [_task_evaluation(name, run_file.evaluate.lm_eval_limit) for name in run_file.evaluate.lm_eval]
    return [*found, *(file_evaluation(Path(place), "qa_build.evals") for place in run_file.qa_build.evals)]


def _own_suites(run_file: RunFile) -> Iterator[tuple[str, SuiteFile]]:
    for place in run_file.evaluate.suites:
        yield place, read_suite(Path(place))


def _suite_evaluation(place: str, suite: SuiteFile) -> Evaluation:
    """Return all prompts of a suite, whichever part is asked; of a private one a hit shows no text of either side.

    Raises UserError, which of a private one says nothing of what a row holds.
    """
    is_file(suite.prompts, place, USER_FILES.example)
    try:
        found = _evaluation(suite.name, suite.prompts, place, USER_FILES)
    except UserError:
        if not suite.private:
            raise
        raise UserError(f"{place}: a row of its prompts has none (what it holds is private)") from None
    if not suite.private:
        return found
    prompts = tuple((digest_text(text)[:ID_DIGITS], text) for _, text in found.prompts)
    return replace(found, prompts=prompts, sealed=True)


def _task_evaluation(name: str, limit: int | None) -> Evaluation:
    """Return the prompts of a task of lm-eval, examples before the question left out; one not to be had is unread."""
    try:
        return Evaluation(name, tuple(task_prompts(name, limit)))
    except UserError as error:
        return Evaluation(name, (), unread=str(error))


def file_evaluation(path: Path, key: str) -> Evaluation:
    """Return the prompts of a JSONL file, named by it. Raises UserError naming `key` and a row without a prompt."""
    if not path.is_file():
        raise UserError(f"{key}: no file {str(path)!r} in {Path.cwd()}; give the path of a .jsonl file")
    return _evaluation(str(path), str(path), key, USER_FILES)


def _evaluation(name: str, place: str, key: str, hub: HubSplit) -> Evaluation:
    local = is_file(place, key, hub.example)
    try:
        return Evaluation(name, tuple(_prompts(list(source_rows(place, key, hub)))))
    except UserError as error:
        if local:
            raise
        return Evaluation(name, (), unread=str(error))


def _prompts(rows: Sequence[SourceRow]) -> Iterator[tuple[str, str]]:
    """Yield the prompts; a question with choices as a whole, and alone where it says what it is about.

    "Which of the following is true?" stands in papers of every kind: only its choices make it a question of this
    suite. So alone it must have a word that at most RARE_SHARE of the questions have.
    """
    asked = [_asked(row) for row in rows]
    holders = Counter(word for text in asked for word in set(words_of(text)))
    few = max(1, RARE_SHARE * len(rows))
    for row, text in zip(rows, asked, strict=True):
        name = row.named("key", "id")
        if "choices" not in row.data:
            yield name, text
            continue
        yield name, "\n".join([text, *map(str, row.get("choices", list))])
        if any(holders[word] <= few for word in words_of(text)):
            yield name, text


def _asked(row: SourceRow) -> str:
    if "messages" in row.data:
        return _turns(row, "user")
    name = next((name for name in ASKED if name in row.data), "text")
    if name not in row.data:
        raise row.wrong(f"keys {', '.join(row.data)}", f"give one of {', '.join(ASKED)}, text or messages")
    return str(row.get(name, str))


def _turns(row: SourceRow, role: str) -> str:
    turns: list[dict[str, Any]] = row.get("messages", list)
    if not all(isinstance(turn, dict) for turn in turns):
        raise row.wrong("messages hold something else than turns", "give each turn as role and content")
    return "\n".join(str(turn.get("content", "")) for turn in turns if turn.get("role") == role)


def dataset_texts(path: Path) -> Iterator[TrainingText]:
    """Yield the rows of a JSONL dataset, by their line: questions, Inject rows, instructions, chats or plain text.

    Raises UserError for a file that is not there and for a row with nothing to check.
    """
    if not path.is_file():
        raise UserError(f"dataset: no file {str(path)!r} in {Path.cwd()}; give the path of a .jsonl file")
    for row in source_rows(str(path), "dataset", USER_FILES):
        shown = [row.data[name] for name in SHOWN if isinstance(row.data.get(name), str)]
        if "messages" in row.data:
            shown.append(_turns(row, "assistant"))
        asked = _asked(row) if "text" not in row.data or set(ASKED) & set(row.data) else ""
        yield TrainingText(str(row.number), asked, "\n".join(shown))
