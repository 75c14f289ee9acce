"""The command line: what it prints, its exit codes, and that it starts fast."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iar import cli
from iar.errors import NoFeasibleCandidate, TemporaryError
from iar.records import Chunk, QAPair, write_json, write_records
from iar.services import doctor, local_run
from iar.services.runs import find_run
from iar.services.workspace import Ref

HEAVY = (
    "torch",
    "transformers",
    "kfp",
    "mlflow",
    "pyarrow",
    "matplotlib",
    "pydantic",
    "rich",
    "httpx",
    "aiohttp",
    "numpy",
)
SCORE = {"points": 50.46, "low": 48.0, "high": 53.0}
RESULTS = {
    "run_id": "x-1",
    "pick": "ties-d0.3",
    "models": [
        {"id": "theta_0", "split": "test", "domain": SCORE, "general": SCORE},
        {"id": "ties-d0.3", "split": "test", "domain": SCORE, "general": SCORE},
    ],
}


@pytest.fixture
def run_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("IAR_STATE", raising=False)
    path = tmp_path / "x.yaml"
    state = tmp_path / "state"
    path.write_text(f"run:\n  name: x\n  state: {state}\ndocuments:\n  path: no-documents\n", encoding="utf-8")
    return path


def finished_run(run_yaml: Path) -> Path:
    """Write the books of a finished run, as a local run leaves them; return its register artifact."""
    from iar.services.run_files import load_run_file

    run_id = load_run_file(run_yaml).run_id
    artifact = run_yaml.parent / "artifact"
    artifact.mkdir()
    write_json(artifact / "results.json", RESULTS)
    (artifact / "report.html").write_text("<html></html>")
    folder = run_yaml.parent / "state" / "runs" / run_id
    (folder / "tasks").mkdir(parents=True)
    write_json(folder / "run.json", {"run_id": run_id, "started": 1.0})
    task = {"task": "register", "stage": "register", "ref": str(Ref(artifact, "0" * 64)), "reused": False}
    write_json(folder / "tasks" / "register.json", task)
    event = {"time": 1.0, "task": "register", "kind": "done", "seconds": 2.5, "reused": True}
    (folder / "progress.jsonl").write_text(json.dumps(event) + "\n")
    return artifact


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.call([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['iar', '--help']\n"
        "from iar import cli\n"
        "code = cli.call(['--help'])\n"
        f"print('loaded', [name for name in {HEAVY!r} if name in sys.modules], code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded [] 0"
    assert re.search(r"doctor +Check this machine and a run file\.", done.stdout)


def test_a_user_error_is_one_line_on_stderr_and_exit_code_2(capsys: pytest.CaptureFixture[str], run_yaml: Path) -> None:
    line = "--set inject.epochs=x: inject.epochs: 'x' is not a whole number; write a number such as 3"
    assert call(capsys, "run", run_yaml, "--set", "inject.epochs=x") == (2, "", f"error: {line}\n")


def test_a_wrong_command_or_option_is_a_user_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = call(capsys, "stauts")
    assert (code, error.startswith("error: No such command 'stauts'")) == (2, True)
    assert call(capsys, "run")[::2] == (2, "error: Missing argument 'RUN.yaml'; see iar --help\n")


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    from iar.errors import UserError

    with pytest.raises(UserError):
        cli.call(["run", "nothing.yaml", "--debug"])


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (TemporaryError("the server is down"), 4, "error: the server is down"),
        (NoFeasibleCandidate("none of 12 passed"), 3, "error: none of 12 passed"),
        (
            ZeroDivisionError("oops"),
            1,
            "error: unexpected ZeroDivisionError: oops; run again with --debug for the traceback",
        ),
        (KeyboardInterrupt(), 130, "error: interrupted"),
    ],
)
def test_the_exit_code_says_what_kind_of_error_it_was(
    capsys: pytest.CaptureFixture[str],
    run_yaml: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    line: str,
) -> None:
    def failing(*_: Any) -> None:
        raise error

    finished_run(run_yaml)
    monkeypatch.setattr(doctor, "preflight", lambda run_file: [])
    monkeypatch.setattr(local_run, "run", failing)
    found, _, stderr = call(capsys, "run", run_yaml)
    assert (found, stderr.splitlines()[-1]) == (code, line)


def test_an_interrupted_run_exits_like_an_interrupted_program(
    capsys: pytest.CaptureFixture[str], run_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise TemporaryError("interrupted at inject: run the same command again to continue") from None

    monkeypatch.setattr(doctor, "preflight", lambda run_file: [])
    monkeypatch.setattr(local_run, "run", interrupted)
    code, _, stderr = call(capsys, "run", run_yaml)
    assert (code, stderr) == (130, "error: interrupted at inject: run the same command again to continue\n")


def test_run_ends_with_the_table_the_pick_what_is_rule_based_and_the_report(
    capsys: pytest.CaptureFixture[str], run_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = finished_run(run_yaml) / "report.html"
    result = local_run.RunResult("x-1", report.parent, report, RESULTS, 9, 4, 61.0)
    monkeypatch.setattr(doctor, "preflight", lambda run_file: [])
    monkeypatch.setattr(local_run, "run", lambda run_file, watch: result)
    code, out, _ = call(capsys, "run", run_yaml)
    assert code == 0
    assert (
        "ties-d0.3 (pick)  test   50.5 [48.0, 53.0]  -       -     -        50.5 [48.0, 53.0]\nPick: ties-d0.3\n" in out
    )
    assert "Questions and answers: offline and rule-based, no LLM\n" in out
    assert "Judges: rule:exact (rule-based, no LLM), rule:token-f1 (rule-based, no LLM)" in out
    assert f"Done in 1 min 01 s, 4 of 9 stages reused\nReport: {report}\n" in out


def test_recipes_are_a_value_of_the_run_file(
    capsys: pytest.CaptureFixture[str], run_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = finished_run(run_yaml) / "report.html"
    result = local_run.RunResult("x-1", report.parent, report, RESULTS, 9, 4, 61.0)
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(doctor, "preflight", lambda run_file: [])
    monkeypatch.setattr(local_run, "run", lambda run_file, watch: asked.append(run_file.baselines.recipes) or result)
    code, out, _ = call(capsys, "run", run_yaml, "--recipes", "fapm, vanilla-sft,replay")
    assert (code, asked) == (0, [("vanilla-sft", "replay", "fapm")])
    assert f"""Ask it: iar ask {run_yaml} "..." --set 'baselines.recipes=["fapm", "vanilla-sft", "replay"]'""" in out


def test_an_unknown_recipe_is_refused_with_the_one_that_may_be_meant(
    capsys: pytest.CaptureFixture[str], run_yaml: Path
) -> None:
    code, _, error = call(capsys, "compile", run_yaml, "--recipes", "lora,repaly")
    assert code == 2 and error.count("\n") == 1
    assert "baselines.recipes" in error and "'repaly' is not one of" in error and "did you mean 'replay'?" in error
    assert call(capsys, "run", run_yaml, "--recipes", "lora,lora")[2].endswith("names a recipe twice; name each once\n")


def test_status_shows_stages_and_results(capsys: pytest.CaptureFixture[str], run_yaml: Path) -> None:
    finished_run(run_yaml)
    code, out, _ = call(capsys, "status", run_yaml)
    assert code == 0
    assert "register  done   2.5 s  reused" in out
    assert "Pick: ties-d0.3" in out


def test_status_as_json_carries_state_stages_and_results(capsys: pytest.CaptureFixture[str], run_yaml: Path) -> None:
    finished_run(run_yaml)
    about = json.loads(call(capsys, "status", "--state", run_yaml.parent / "state", "--json")[1])
    assert (about["state"], about["results"]["pick"]) == ("done", "ties-d0.3")
    assert [(stage["seconds"], stage["reused"]) for stage in about["stages"]] == [(2.5, True)]


def test_status_before_any_run_says_how_to_start_one(capsys: pytest.CaptureFixture[str], run_yaml: Path) -> None:
    state = run_yaml.parent / "state"
    assert call(capsys, "status", run_yaml)[2].endswith(f"was never started in {state}; start it with iar run\n")
    error = f"error: no run in {state}; start one with iar run RUN.yaml, or name its folder with --state\n"
    assert call(capsys, "status", "--state", state) == (2, "", error)


def test_report_prints_its_path(capsys: pytest.CaptureFixture[str], run_yaml: Path) -> None:
    artifact = finished_run(run_yaml)
    assert call(capsys, "report", run_yaml) == (0, f"{artifact / 'report.html'}\n", "")


def test_ask_refuses_an_empty_question(capsys: pytest.CaptureFixture[str], run_yaml: Path) -> None:
    code, _, error = call(capsys, "ask", run_yaml, " ")
    assert (code, error.startswith("error: the question is empty; write it in quotes")) == (2, True)


def test_compile_writes_the_same_bytes_twice(capsys: pytest.CaptureFixture[str], run_yaml: Path) -> None:
    first, second = run_yaml.parent / "a" / "1.yaml", run_yaml.parent / "2.yaml"
    assert call(capsys, "compile", run_yaml, "-o", first)[0] == 0
    assert call(capsys, "compile", run_yaml, "-o", second) == (0, f"{second}\n", "")
    assert first.read_bytes() == second.read_bytes()


def test_compile_refuses_a_training_that_no_gpu_of_the_pool_holds(
    capsys: pytest.CaptureFixture[str], run_yaml: Path
) -> None:
    out = run_yaml.parent / "large.yaml"
    large = ("--set", "model.source=Qwen/Qwen3-32B", "--set", "platform.processes=8")
    code, _, error = call(capsys, "compile", run_yaml, "-o", out, "--set", "platform.backend=kubeflow", *large)
    assert code == 2 and error.count("\n") == 1 and not out.exists()
    assert "GB on NVIDIA-A100-SXM4-40GB; choose a smaller model, or " in error
    assert call(capsys, "compile", run_yaml, "-o", out, *large)[0] == 0, "for this machine there is no pool"


@pytest.mark.parametrize(("target", "reason"), [("folder.yaml", "not the name"), ("x.txt", "not the name")])
def test_compile_refuses_a_target_that_is_no_yaml_file(
    capsys: pytest.CaptureFixture[str], run_yaml: Path, target: str, reason: str
) -> None:
    (run_yaml.parent / "folder.yaml").mkdir()
    code, _, error = call(capsys, "compile", run_yaml, "-o", run_yaml.parent / target)
    assert code == 2 and error.count("\n") == 1
    assert error.startswith("error: --output ") and reason in error


def test_compile_overwrites_none_of_the_files_it_reads(
    capsys: pytest.CaptureFixture[str], run_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_yaml.parent)
    text = run_yaml.read_text()
    symbolic, hard, note = Path("symbolic.yaml"), Path("hard.yaml"), Path("note.md")
    symbolic.symlink_to(run_yaml)
    hard.hardlink_to(run_yaml)
    note.symlink_to(run_yaml)
    (default := Path("x-pipeline.yaml")).write_text(text)
    for arguments in (
        [run_yaml, "-o", run_yaml],
        [run_yaml, "-o", f"../{run_yaml.parent.name}/x.yaml"],
        [run_yaml, "-o", symbolic],
        [symbolic, "-o", run_yaml],
        [run_yaml, "-o", hard],
        [default],
        [run_yaml, "-o", "new.yaml", "--comment", note],
        [run_yaml, "-o", default, "--comment", "new.md", "--against", default],
    ):
        code, _, error = call(capsys, "compile", *arguments)
        assert (code, error.endswith(", which it is made from; give another name\n")) == (2, True), arguments
    assert run_yaml.read_text() == default.read_text() == text
    assert not Path("new.yaml").exists() and not Path("new.md").exists()
    code, _, error = call(capsys, "promote", run_yaml, "--kserve", run_yaml)
    assert (code, error.startswith(f"error: --kserve {run_yaml}: would overwrite ")) == (2, True)


@pytest.mark.parametrize("name", ["Bad NS", "a_b", "-a", "a-", "a" * 64, "a.b", "a\n"])
def test_a_name_that_no_namespace_has_is_refused_everywhere(
    capsys: pytest.CaptureFixture[str], run_yaml: Path, name: str
) -> None:
    for command in (
        ["compile", run_yaml, "--kubernetes"],
        ["submit", run_yaml],
        ["reconcile", run_yaml.parent],
        ["doctor", "--cluster"],
    ):
        assert call(capsys, *command, "--namespace", name) == (
            2,
            "",
            f"error: --namespace {name!r}: no name of a namespace; write at most 63 lower case letters, digits and "
            "dashes\n",
        )


def test_doctor_exits_with_2_when_something_fails(capsys: pytest.CaptureFixture[str], run_yaml: Path) -> None:
    code, out, _ = call(capsys, "doctor", run_yaml, "--set", "qa_build.teacher=offline", "--json")
    documents = next(check for check in json.loads(out) if check["name"] == "documents")
    assert (code, documents["status"]) == (2, "fail")
    assert documents["detail"].startswith("documents.path: no-documents is not a folder")


def test_lineage_follows_the_registry_both_ways(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from iar.records import Lineage
    from iar.services.registry import Producer, Registry

    document, model = "a" * 64, "b" * 64
    registry = Registry.open(f"sqlite:///{tmp_path / 'registry.sqlite'}")
    entries = [
        Lineage("document", document, "velm.md", {}),
        Lineage("model", model, "theta_I", {}, (("data", document),)),
    ]
    registry.record(entries, Producer("x-1", "inject", "0", "0" * 64, 17, 1.0, 1.0))
    code, out, _ = call(capsys, "lineage", "upstream", "model:bbbb", "--state", tmp_path)
    assert (code, [line.split()[-1] for line in out.splitlines()]) == (0, ["theta_I", "velm.md"])
    rows = json.loads(call(capsys, "lineage", "downstream", "document:aaaa", "--state", tmp_path, "--json")[1])
    assert [row["name"] for row in rows] == ["velm.md", "theta_I"]


def test_lineage_without_a_registry_says_where_it_looked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, error = call(capsys, "lineage", "upstream", "abc", "--state", tmp_path)
    assert (code, error.startswith(f"error: no registry at {tmp_path / 'registry.sqlite'}; ")) == (2, True)


def test_questions_lists_a_repeatable_sample_with_its_sources_and_nothing_of_the_test(
    capsys: pytest.CaptureFixture[str], run_yaml: Path
) -> None:
    finished_run(run_yaml)
    assert call(capsys, "questions", run_yaml)[2] == (
        f"error: run {find_run(run_yaml.parent / 'state').name} has built no questions yet; start it with iar run\n"
    )
    data = run_yaml.parent / "data"
    data.mkdir()
    write_records(data / "chunks.jsonl", [Chunk("d.0", "d", 0, 20, "Built by\nTora Lind.")])
    for split in ("train", "validation", "test"):
        pairs = [
            QAPair(f"{split}-{n}", "d", "d.0", split, "fact_extraction", f"Who {n}?", "Tora Lind did.", "Tora Lind",
                   ("Lind",), "Tora Lind", "offline")
            for n in range(9)
        ]  # fmt: skip
        write_records(data / f"{split}.jsonl", pairs)
    folder = find_run(run_yaml.parent / "state")
    task = {"task": "qa-build", "stage": "qa_build", "ref": str(Ref(data, "0" * 64)), "reused": False}
    write_json(folder / "tasks" / "qa-build.json", task)
    with (folder / "progress.jsonl").open("a") as file:
        file.write(
            json.dumps({"time": 1.0, "task": "qa-build", "kind": "done", "seconds": 2.5, "reused": False}) + "\n"
        )

    code, out, _ = call(capsys, "questions", run_yaml, "--number", 5)
    assert code == 0 and out.count("source:   Built by Tora Lind.") == 5 and "test" not in out
    assert "decides:  Tora Lind | Lind" in out and out == call(capsys, "questions", run_yaml, "-n", 5)[1]
    shown = json.loads(call(capsys, "questions", run_yaml, "--json")[1])
    assert len(shown) == 18 and {one["split"] for one in shown} == {"train", "validation"}
