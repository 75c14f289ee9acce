"""A whole pipeline run that several test files look at: killed once in training, then finished."""

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from iar.config import RunFile
from iar.errors import NoFeasibleCandidate
from iar.services import local_run
from iar.services.progress import EventTail
from iar.services.runs import read_status
from iar.services.workspace import Workspace

REPOSITORY = Path(__file__).parents[1]
BASELINES = ("budget-match", "replay", "sdft", "fapm")
TRAININGS = ("inject", "align", "vanilla")
PEOPLE = (
    ("Ada Vorn", "glassblower", "Nelmouth", 1812, "the Grey Kiln"),
    ("Bertil Osk", "clockmaker", "Tarn Bay", 1831, "the Salt Clock"),
    ("Cora Lindqvist", "botanist", "Upper Vale", 1847, "the Moss Atlas"),
    ("Dov Marrek", "engineer", "Stonegate", 1859, "the Long Lock"),
    ("Elin Haddock", "cartographer", "Fenwick", 1866, "the Tide Map"),
    ("Faro Quill", "printer", "Ashby Cross", 1873, "the Red Almanac"),
)


def write_documents(folder: Path, people: Sequence[tuple[str, str, str, int, str]] = PEOPLE) -> Path:
    folder.mkdir()
    for name, trade, town, year, work in people:
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


def finished_run(folder: Path, model: Path) -> Finished:
    """Return the one run of a test session: the first process that asks makes it, others wait for it."""
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / "finished.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists():
            settings = tiny_run_file(folder, model)
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(REPOSITORY)
                killed = start_and_kill(settings)
                pick = finish(settings)
            status = read_status(Workspace.of(settings).run(settings.run_id))
            record.write_text(json.dumps([settings.canonical(), killed, pick, status]))
        text, killed, pick, status = json.loads(record.read_text())
        return Finished(RunFile.model_validate_json(text), killed, pick, status)
