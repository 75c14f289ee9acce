"""Questions to the selected model, closed book: no document is looked at, the weights answer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from iar.errors import UserError
from iar.records import EvalItem
from iar.services.workspace import Ref

MAX_NEW_TOKENS = 128


def open_model(folder: Path, system_turn: str | None, max_new_tokens: int = MAX_NEW_TOKENS) -> Callable[[str], str]:
    """Load the model in `folder` once; return the function that puts one question to it, greedily."""
    from transformers.utils.logging import disable_progress_bar

    from iar.services.engine import Engine

    disable_progress_bar()  # the terminal belongs to question and answer
    engine = Engine(folder, system_turn, batch_size=1)

    def ask(question: str) -> str:
        item = EvalItem("question", "ask", question, max_new_tokens, {})
        return next(iter(engine.generate([item]))).text.strip()

    return ask


def answer(folder: Path, question: str, system_turn: str | None) -> str:
    """Return the answer of the model in `folder` to one question."""
    return open_model(folder, system_turn)(question)


def picked_model(status: dict[str, Any]) -> tuple[str, Path]:
    """Return the pick's id and folder from a run's status. Raises UserError where there is none yet."""
    run_id = status["run_id"]
    pick = (status["results"] or {}).get("pick", "")
    if status["state"] == "no_feasible_candidate" or (status["results"] and not pick):
        raise UserError(f"run {run_id}: no candidate was feasible, so there is no model to ask; see {status['report']}")
    references = {stage["task"]: stage["ref"] for stage in status["stages"]}
    if not references.get("register") or not pick:
        raise UserError(f"run {run_id} is {status['state']} and has picked no model yet; finish it with iar run")
    folder = Ref.parse(references["register"]).path / "model"
    if not folder.is_dir():
        raise UserError(f"run {run_id}: the picked model is gone from {folder}; run the same run file again")
    return pick, folder
