"""Which model a question goes to, and that it goes there closed book."""

from pathlib import Path

import pytest

from iar.errors import UserError
from iar.services.ask import answer, picked_model
from iar.services.workspace import Ref


def status(folder: Path, state: str = "done", pick: str = "ties-d0.3") -> dict[str, object]:
    stages = [{"task": "register", "ref": str(Ref(folder, "0" * 64)) if state == "done" else ""}]
    results = {"pick": pick} if state == "done" else None
    return {"run_id": "x-1", "state": state, "stages": stages, "results": results, "report": "r.html"}


def test_the_pick_is_the_model_of_the_register_stage(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert picked_model(status(tmp_path)) == ("ties-d0.3", tmp_path / "model")


def test_a_run_that_is_not_finished_has_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run x-1 is running and has picked no model yet; finish it with iar run"):
        picked_model(status(tmp_path, state="running"))


def test_a_run_without_feasible_candidate_has_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no candidate was feasible, so there is no model to ask; see r\.html"):
        picked_model(status(tmp_path, pick=""))


def test_a_deleted_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the picked model is gone from .*/model; run the same run file again"):
        picked_model(status(tmp_path))


def test_the_same_question_gets_the_same_answer(tiny_model_folder: Path) -> None:
    first = answer(tiny_model_folder, "Which lamp burns in the tower?", None)
    assert first == answer(tiny_model_folder, "Which lamp burns in the tower?", None)
