"""The whole pipeline with its real stages, four baselines among them, on a two-layer model and six short documents.

The first run is killed in training and goes on; the second finds everything done.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from iar.config import RunFile
from iar.errors import NoFeasibleCandidate
from iar.services import local_run
from iar.services.progress import EventTail
from iar.services.runs import read_status
from iar.services.workspace import Ref, Workspace

REPOSITORY = Path(__file__).parents[1]
BASELINES = ("budget-match", "replay", "sdft", "fapm")
TASKS = 11 + len(BASELINES) + 2  # sdft-rewrite and judge-eval-baselines
CANDIDATES = 12
TRAININGS = ("inject", "align", "vanilla")
PEOPLE = (
    ("Ada Vorn", "glassblower", "Nelmouth", 1812, "the Grey Kiln"),
    ("Bertil Osk", "clockmaker", "Tarn Bay", 1831, "the Salt Clock"),
    ("Cora Lindqvist", "botanist", "Upper Vale", 1847, "the Moss Atlas"),
    ("Dov Marrek", "engineer", "Stonegate", 1859, "the Long Lock"),
    ("Elin Haddock", "cartographer", "Fenwick", 1866, "the Tide Map"),
    ("Faro Quill", "printer", "Ashby Cross", 1873, "the Red Almanac"),
)


def write_documents(folder: Path) -> Path:
    folder.mkdir()
    for name, trade, town, year, work in PEOPLE:
        (folder / f"{name.split()[0].lower()}.md").write_text(
            f"# {name}\n\n{name} was a {trade} from {town}. {name} was born in {year} and made {work}. "
            f"The workshop of {name} stood beside the harbour of {town}, and it burned down in {year + 41}.\n\n"
            f"{work[0].upper()}{work[1:]} took {name} nine years. It was shown in {town} in {year + 35}, "
            f"because the council of {town} had paid for it. {name} died in {year + 60}.\n"
        )
    return folder


def first_lines(name: str, count: int, folder: Path) -> str:
    lines = (REPOSITORY / "examples" / "probes" / name).read_text(encoding="utf-8").splitlines()
    (folder / name).write_text("\n".join(lines[:count]) + "\n", encoding="utf-8")
    return str(folder / name)


def tiny_run_file(folder: Path, model: Path) -> RunFile:
    training = {"epochs": 2, "learning_rate": 1e-3, "batch_size": 8, "sequence_length": 256, "micro_batch_tokens": 1024}
    tokens = {f"{suite}_max_tokens": 8 for suite in ("domain", "ifeval", "mmlu", "msbench")}
    probes = {suite: first_lines(f"{suite}.jsonl", 3, folder) for suite in ("ifeval", "mmlu", "msbench")}
    return RunFile.model_validate(
        {
            "run": {"name": "tiny", "state": str(folder / "state")},
            "model": {"source": str(model)},
            "documents": {"path": str(write_documents(folder / "documents"))},
            "qa_build": {"chunk_characters": 160, "validation_share": 0.3, "test_share": 0.3},
            "inject": training,
            "align": training,
            "baselines": {"recipes": list(BASELINES), "replay_share": 0.2, "sdft_max_tokens": 8},
            "evaluate": {"resamples": 100} | tokens | probes,
            "select": {"tolerance_points": 100.0},
            "platform": {"candidate_shards": 1},
        }
    )


SCRIPT = """
import sys
from iar.config import RunFile
from iar.services import local_run
local_run.run(RunFile.model_validate_json(sys.argv[1]))
"""


def start_and_kill(settings: RunFile) -> str:
    """Run in another process and kill it, with no time to tidy up, in training; return the task it was at."""
    events = EventTail(Workspace.of(settings).run(settings.run_id) / "progress.jsonl")
    training: list[str] = []
    with subprocess.Popen([sys.executable, "-c", SCRIPT, settings.canonical()]) as process:
        deadline = time.monotonic() + 180
        while not training:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
            training = [event.task for event in events.new() if event.kind == "progress" and event.task in TRAININGS]
        process.kill()
    return training[0]


def finish(settings: RunFile) -> str:
    """Run to the end; return the pick, "" for none, which is a result too."""
    try:
        return str(local_run.run(settings).results["pick"])
    except NoFeasibleCandidate:
        return ""


class Finished(NamedTuple):
    """A run that was killed once and then finished, and how it then stood."""

    settings: RunFile
    killed: str
    pick: str
    status: dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Iterator[Finished]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(REPOSITORY)
        settings = tiny_run_file(tmp_path_factory.mktemp("pipeline"), tiny_model_folder)
        killed = start_and_kill(settings)
        pick = finish(settings)
        yield Finished(settings, killed, pick, read_status(Workspace.of(settings).run(settings.run_id)))


def artifact(finished: Finished, task: str) -> Path:
    return next(Ref.parse(stage["ref"]).path for stage in finished.status["stages"] if stage["task"] == task)


def test_a_killed_run_goes_on_without_repeating_what_was_done(finished: Finished) -> None:
    stages = {stage["task"]: stage for stage in finished.status["stages"]}
    assert len(stages) == TASKS
    assert stages["base-model"]["reused"] and stages["qa-build"]["reused"]
    assert not stages[finished.killed]["reused"] and stages[finished.killed]["state"] == "done"
    assert finished.status["state"] == ("done" if finished.pick else "no_feasible_candidate")


def test_the_selection_judges_all_twelve_candidates(finished: Finished) -> None:
    selection = json.loads((artifact(finished, "selector") / "selection.json").read_text())
    assert selection["pick"] == finished.pick
    assert len(selection["verdicts"]) == CANDIDATES


def test_the_report_and_the_table_are_written_whatever_the_pick(finished: Finished) -> None:
    assert "<html" in Path(finished.status["report"]).read_text(encoding="utf-8").lower()
    assert finished.status["results"]["pick"] == finished.pick
    assert (artifact(finished, "register") / "model").is_dir() == bool(finished.pick)


def test_the_baselines_asked_stand_in_the_table_of_recipes(finished: Finished) -> None:
    rows = {row["recipe"]: row for row in finished.status["results"]["recipes"]}
    assert list(rows)[: 2 + len(BASELINES)] == ["theta_0", "vanilla-sft", *BASELINES]
    assert {row["split"] for row in rows.values()} == {"test" if finished.pick else "validation"}
    assert rows["Inject + Align"]["ratio_to_inject_align"] == 1
    # whole epochs come as near as half of one
    epoch = rows["vanilla-sft"]["ratio_to_inject_align"] / finished.settings.align.epochs
    assert abs(rows["budget-match"]["ratio_to_inject_align"] - 1) <= epoch / 2 + 1e-9
    assert rows["budget-match"]["facts"]["budget_ratio"] == rows["budget-match"]["ratio_to_inject_align"]
    assert rows["fapm"]["target_tokens"] == rows["vanilla-sft"]["target_tokens"]
    questions = (artifact(finished, "qa-build") / "train.jsonl").read_text().splitlines()
    assert rows["sdft"]["facts"]["rewrites"] == len(questions)
    assert set(rows["replay"]["minus_vanilla"]) == {"domain", "general"}


def test_every_artifact_is_whole(finished: Finished) -> None:
    for stage in finished.status["stages"]:
        assert Ref.parse(stage["ref"]).open(verify=True).files


def test_a_second_run_reuses_every_task(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert finish(finished.settings) == finished.pick
    status = read_status(Workspace.of(finished.settings).run(finished.settings.run_id))
    assert len(status["stages"]) == TASKS
    assert all(stage["reused"] for stage in status["stages"])


def test_a_new_setting_of_the_selection_repeats_only_what_follows(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    sections = finished.settings.model_dump(mode="json")
    sections["select"]["tolerance_points"] = 99.0
    settings = RunFile.model_validate(sections)
    finish(settings)
    status = read_status(Workspace.of(settings).run(settings.run_id))
    repeated = {stage["task"] for stage in status["stages"] if not stage["reused"]}
    assert {"selector", "register"} <= repeated <= {"selector", "locked-test", "register"}
