"""The whole story on a real run: a document is retracted, what no longer stands is told, and the run is made again."""

import json
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from iar import cli
from iar.config import RunFile
from iar.errors import UserError
from iar.methods.digest import digest_file
from iar.services.finalist import finalist
from iar.services.promotion import promote
from iar.services.registry import short_id
from iar.services.workspace import Ref, Workspace
from tests.finished_run import REPOSITORY, finish, tiny_run_file

pytestmark = pytest.mark.slow
TAKEN = "cora.md"


class Story:
    """A finished run with a pick, and `iar lineage ... --json` of it."""

    def __init__(self, settings: RunFile, capsys: pytest.CaptureFixture[str]) -> None:
        self.settings, self._capsys = settings, capsys
        self.state = Workspace.of(settings).state
        self.taken = digest_file(Path(settings.documents.path) / TAKEN)

    def asked(self, *arguments: str, code: int = 0) -> Any:
        self._capsys.readouterr()
        assert cli.call(["lineage", *arguments, "--state", str(self.state), "--json"]) == code
        return json.loads(self._capsys.readouterr().out)

    def artifact(self, task: str) -> Path:
        marker = Workspace(self.state).run(self.settings.run_id) / "tasks" / f"{task}.json"
        return Ref.parse(json.loads(marker.read_text())["ref"]).path

    def dataset(self) -> str:
        return short_id("dataset", json.loads((self.artifact("qa-build") / "dataset.json").read_text())["digest"])

    def texts(self) -> set[str]:
        lines = (self.artifact("qa-build") / "documents.jsonl").read_text().splitlines()
        return {json.loads(line)["source"] for line in lines}


@pytest.fixture
def story(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Story:
    monkeypatch.chdir(REPOSITORY)
    sections = tiny_run_file(tmp_path, tiny_model_folder).model_dump(mode="json")
    sections["baselines"]["recipes"] = []
    settings = RunFile.model_validate(sections)
    assert finish(settings), "the story needs a model that is served"
    return Story(settings, capsys)


def test_a_retracted_document_takes_what_was_made_of_it_and_the_next_run_is_without_it(
    story: Story,
) -> None:
    settings, before = story.settings, story.dataset()
    served = promote(settings, "champion", test_reused=True)
    model = short_id("checkpoint", finalist(settings).lineage)
    assert TAKEN in story.texts()

    # What no longer stands.
    told = story.asked("retract", story.taken, "--reason", "licence ended")
    assert before in [one["id"] for one in told["datasets"]]
    tainted = {one["name"] for one in told["models"]}
    assert {"theta_I", "theta_IA", "vanilla", served.model + " " + finalist(settings).selection.pick} <= tainted
    assert "theta_0" not in tainted
    assert {one["kind"] for one in told["published"]} == {"scores", "decision", "report"}
    assert told["standing_aliases"] == {f"{served.model}@champion": "1"}
    assert [row["kind"] for row in story.asked("why", model, story.taken)][-1] == "source"
    with pytest.raises(UserError, match=r'retraction: checkpoint:.* was retracted on [\d-]+: "licence ended"'):
        promote(settings, "challenger", test_reused=True)

    # What must run again, by the command as it is printed.
    (plan,) = story.asked("rebuild")
    assert plan["reused"] == ["base-model"]
    assert plan["again"][0] == "qa-build" and {"inject", "align", "vanilla", "register"} <= set(plan["again"])
    command = shlex.split(plan["command"])
    assert command[:2] == ["iar", "run"] and cli.call(command[1:]) in (0, 3)
    assert story.asked("rebuild") == [] and TAKEN not in story.texts()

    # The new lineage beside the old.
    after = story.dataset()
    changes = story.asked("diff", before, after)
    gone = [one for one in changes if one["change"] == "removed"]
    assert gone and all(one["why"].endswith("was retracted: licence ended") for one in gone)
    theta_i = [one["id"] for one in story.asked("consumed-by", after) if one["name"] == "theta_I"]
    assert len(theta_i) == 1 and story.asked("why", theta_i[0], story.taken) == []
    names = {row["name"] for row in story.asked("upstream", theta_i[0])}
    assert not any(TAKEN in name for name in names) and "ada.md" in names
    assert story.asked("verify")["faults"] == []
    head = ["verify", "--run", str(Workspace(story.state).run(settings.run_id) / "run.yaml")]
    assert story.asked(*head)["faults"] == []
    if (story.artifact("register") / "model").is_dir():
        promote(settings, "challenger", test_reused=True)

    # An older copy of the registry is told from it by what MLflow has seen.
    with closing(sqlite3.connect(story.state / "registry.sqlite")) as connection, connection:
        connection.execute("DELETE FROM recordings WHERE id = (SELECT max(id) FROM recordings)")
    (story.state / "registry-heads.jsonl").unlink()
    assert any("once ended with" in fault for fault in story.asked(*head, code=1)["faults"])
