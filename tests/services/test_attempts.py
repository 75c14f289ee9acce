"""What failed or was killed stands in the registry, never in the way of the error itself."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from iar import cli
from iar.errors import PermanentError, UserError
from iar.records import Lineage, Outcome
from iar.services.activity import cost
from iar.services.lineage_activities import activities, activity_lines
from iar.services.llm_spending import apart
from iar.services.registry import Producer, Registry
from iar.services.registry_heads import kept_heads
from tests.services.test_execution import World, good

DATA = Lineage("dataset", "d" * 64, "qa", {"pairs": 3})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def registry(world: World) -> Registry:
    return Registry.open(f"sqlite:///{world.state / 'registry.sqlite'}")


def failing(error: Exception) -> Any:
    def stage(*arguments: Any) -> Outcome:
        raise error

    return stage


def notes(world: World) -> list[Path]:
    return sorted((world.state / "tries").glob("*"))


def test_a_failed_try_is_an_activity_with_its_error_and_a_later_one_is_another(world: World) -> None:
    with pytest.raises(PermanentError):
        world.run(failing(PermanentError("loss is not finite at step 3\nrow 7: a text of the documents")))
    world.run(good)

    failed, finished = activities(registry(world))
    assert (failed.status, failed.stage, failed.error) == ("failed", "base-model", "PermanentError")
    assert failed.message == "loss is not finite at step 3"
    assert 0 < time.time() - failed.started < 60 and 0 <= failed.seconds < 60
    assert (finished.status, finished.error, finished.used) == ("finished", "", ())
    assert failed.config == finished.config and failed.environment == finished.environment and failed.hardware
    assert registry(world).verify(kept_heads(world.state)) == [] and notes(world) == []


def test_an_unexpected_error_says_where_and_not_what(world: World) -> None:
    with pytest.raises(ZeroDivisionError):
        world.run(failing(ZeroDivisionError("the secret text of a document")))

    (failed,) = activities(registry(world), failed=True)
    assert failed.error == "ZeroDivisionError" and "secret" not in json.dumps(failed.payload)
    assert failed.message.startswith("unexpected, at services/execution.py:")


def test_no_secret_and_no_second_line_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", "sk-0123456789")
    with pytest.raises(UserError):
        world.run(failing(UserError("http://ada:hunter2@host/v1 refused sk-0123456789 \x1b[31m" + "x" * 400)))

    (failed,) = activities(registry(world))
    assert failed.message.startswith("http://ada:***@host/v1 refused ***  [31mxxx")
    assert len(failed.message) == 300 and failed.message.endswith("...")


def test_a_registry_that_is_down_hides_no_error_and_learns_of_it_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.state / "registry.sqlite").mkdir(parents=True)
    with pytest.raises(PermanentError, match=r"^loss is not finite$"):
        world.run(failing(PermanentError("loss is not finite")))
    assert len(notes(world)) == 1
    (world.state / "registry.sqlite").rmdir()

    world.run(good)

    assert [one.status for one in activities(registry(world))] == ["failed", "finished"] and notes(world) == []


def test_what_was_killed_is_recorded_by_whoever_works_there_next(world: World) -> None:
    script = f"""
        import sys, time
        from pathlib import Path
        from types import SimpleNamespace
        from iar.services.execution import execute

        def stage(run_file, inputs, out, context):
            context.progress.update(1, 4, "a quarter")
            (out / "half.txt").write_text("half")
            time.sleep(60)

        sys.modules["iar.stages.base_model"] = SimpleNamespace(run=stage)
        execute("base_model", {world.settings.canonical()!r}, {{}})
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env=os.environ) as process:
        deadline = time.monotonic() + 60
        while not [*(world.state / "work").glob("*/half.txt")]:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        world.run(good, name="another")  # while it lives it is no one's to record
        assert [one.status for one in activities(registry(world))] == ["finished"]
        process.send_signal(signal.SIGKILL)
    assert len(notes(world)) == 1

    world.run(good, name="a-third")

    (killed,) = activities(registry(world), failed=True)
    assert (killed.status, killed.stage, killed.error, killed.message) == ("killed", "base-model", "killed", "")
    assert 0 <= killed.seconds < 60 and registry(world).verify() == [] and notes(world) == []


def test_a_failed_use_of_a_dataset_is_one_of_its_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = Registry.open(f"sqlite:///{tmp_path / 'registry.sqlite'}")
    held.record(
        [DATA], Producer("r-1", "qa-build", "1", "c", 17, 1.0, 2.0, cost={"llm_tokens": 1200, "llm_money": 0.5})
    )
    used = (("data", DATA.digest),)
    failed = Producer(
        "r-1", "inject", "1", "c", 17, 5.0, 1.0, "failed", error="UserError", message="no room", used=used
    )
    held.activity(failed)
    held.activity(failed)

    def asked(*arguments: str) -> str:
        assert cli.call(["lineage", *arguments, "--state", str(tmp_path)]) == 0
        return capsys.readouterr().out

    assert asked("consumed-by", "dataset:dd") == "r-1 inject: data of nothing, failed\n1 uses\n"
    lines = asked("activities", "r-1").splitlines()
    assert lines == [
        "1970-01-01 00:00 r-1 qa-build: 2 s, llm money 0.5, llm tokens 1200",
        f"1970-01-01 00:00 r-1 inject: failed after 1 s, UserError: no room, data dataset:{'d' * 12}",
        "2 activities",
    ]
    (told,) = json.loads(asked("activities", "--failed", "--json"))
    assert told["id"] == failed.id and told["used"] == [["data", DATA.digest]] and told["status"] == "failed"
    assert cli.call(["lineage", "activities", "r-2", "--state", str(tmp_path)]) == 2
    assert list(activity_lines(held, [])) == []


def test_times_that_overlap_are_counted_once() -> None:
    assert apart([(5, 6), (1, 3), (2, 4), (4, 4.5)]) == [(1, 4.5), (5, 6)]


def test_what_shards_bought_is_that_of_the_build_and_no_stage_pays_for_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iar.services.reply_cache import Call, open_cache

    endpoint = {
        "name": "t",
        "base_url": "http://localhost:1/v1",
        "model": "m",
        "prompt_price": 2,
        "completion_price": 4,
    }
    settings = world.settings.model_copy(
        update={"qa_build": world.settings.qa_build.model_validate({"teacher": endpoint})}
    )
    began = time.time()
    with open_cache(world.state / "llm-cache") as cache:
        cache.put([Call("k", "m", "", "http://localhost:1/v1", "{}", "{}", True, 300_000, 100_000, 0.1)])
    ended = time.time()

    spent = cost(settings, "qa_build", [], began, ended, {"tokens": 5.0, "rows": 7.0})
    assert spent == {"tokens": 5.0, "llm_tokens": 400_000.0, "llm_money": pytest.approx(1.0)}
    assert cost(settings, "inject", [], began, ended, {}) == cost(settings, "qa_build", [], 1.0, 2.0, {}) == {}
    shard = world.run(good).ref.open()
    shards = [type(shard)(**vars(shard) | {"stage": "qa_shard", "started": began, "seconds": ended - began})]
    assert cost(settings, "qa_build", shards, ended + 1, ended + 2, {})["llm_tokens"] == 400_000.0
