"""The registry as a service, over a small registry with hostile names: what it tells, to whom, and what it refuses."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings

from iar import cli
from iar.records import Lineage
from iar.services.registry import Producer, Registry
from iar.services.registry_api import api, browser_page, content_policy
from iar.services.retraction import retract
from tests.services.registry_cases import a_run

TOKEN = "a-token-of-sufficient-length"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
HOSTILE = "<script>alert(1)</script>' OR 1=1; --"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    opened = Registry.open(f"sqlite:///{tmp_path_factory.mktemp('api')}/registry.sqlite")
    producer = Producer("demo-1", "qa-build", "1.0", "c0ffee", 17, 1000.0, 2.5)
    opened.record([*a_run().values(), Lineage("report", "e" * 64, HOSTILE, {})], producer)
    retract(opened, a_run()["d1"].digest, "withdrawn")
    return opened


@pytest.fixture(scope="module")
def client(registry: Registry) -> TestClient:
    return TestClient(api(registry, TOKEN), headers=HEADERS)


def pages(client: TestClient, path: str, place: str, **asked: Any) -> list[dict[str, Any]]:
    """Follow all pages of a list; `place` names the parameter of the next page."""
    found: list[dict[str, Any]] = []
    follows: Any = None
    while follows not in ("", -1):
        answer = client.get(path, params=asked | ({place: follows} if follows is not None else {})).json()
        found += answer["items"]
        follows = answer["next"]
        assert len(answer["items"]) <= asked["limit"]
    return found


def in_order(edge: dict[str, Any]) -> tuple[str, ...]:
    return tuple(edge[name] for name in ("product", "role", "input", "activity"))


def test_pages_of_entries_hold_each_once(client: TestClient) -> None:
    found = pages(client, "/v1/entries", "after", limit=3)
    digests = [one["digest"] for one in found]
    assert digests == sorted({one.digest for one in a_run().values()} | {"e" * 64})
    assert {one["name"] for one in pages(client, "/v1/entries", "after", limit=1, kind="checkpoint")} == {
        "base", "tuned"
    }  # fmt: skip


def test_an_entry_and_its_edges_are_what_the_registry_says(client: TestClient, registry: Registry) -> None:
    tuned = a_run()["tuned"]
    shown = client.get(f"/v1/entries/checkpoint:{tuned.digest[:12]}").json()
    assert shown["name"] == "tuned" and sorted(map(tuple, shown["inputs"])) == sorted(tuned.inputs)
    found = pages(client, f"/v1/entries/{tuned.digest}/edges", "after", limit=4)
    assert sorted(found, key=in_order) == [vars(edge) for edge in registry.upstream(tuned.digest)]
    down = pages(client, f"/v1/entries/{a_run()['d1'].digest}/edges", "offset", limit=50, direction="downstream")
    assert sorted(down, key=in_order) == [vars(edge) for edge in registry.downstream(a_run()["d1"].digest)]


def test_an_edge_leads_to_its_activity(client: TestClient) -> None:
    (edge, *_) = client.get(f"/v1/entries/{a_run()['tuned'].digest}/edges").json()["items"]
    activity = client.get(f"/v1/activities/{edge['activity']}").json()
    assert (activity["run_id"], activity["stage"], activity["seed"]) == ("demo-1", "qa-build", 17)

    found = pages(client, "/v1/activities", "after", limit=1)
    assert [one["stage"] for one in found] == ["qa-build", "retract"] and found[0] == activity
    assert found[1]["kind"] == "retract" and found[1]["used"] == [["retracted", a_run()["d1"].digest]]
    assert client.get("/v1/activities", params={"run": "demo-1"}).json()["items"] == [activity]
    answer = client.get(f"/v1/activities/{'0' * 64}")
    assert (answer.status_code, answer.json()["detail"]) == (404, "activity 000000000000: no such activity")


def test_the_tree_marks_what_is_retracted(client: TestClient) -> None:
    rows = client.get(f"/v1/entries/{a_run()['tuned'].digest}/tree").json()
    assert rows[0]["id"].startswith("checkpoint:") and rows[0]["depth"] == 0
    assert [row["name"] for row in rows if row["retracted"] == "withdrawn"] == ["d1"]


def test_events_are_paged_and_found_by_subject(client: TestClient) -> None:
    (event,) = pages(client, "/v1/events", "after", limit=1)
    assert event["kind"] == "retract" and event["payload"]["reason"] == "withdrawn"
    assert client.get("/v1/events", params={"subject": event["subject"]}).json()["items"] == [event]
    assert client.get("/v1/events", params={"subject": HOSTILE}).json()["items"] == []


def test_an_unknown_id_is_one_line(client: TestClient) -> None:
    answer = client.get("/v1/entries/checkpoint:0000")
    assert answer.status_code == 404 and "no such entry; closest:" in answer.json()["detail"]


@pytest.mark.parametrize(
    "path",
    ["/v1/entries?limit=0", "/v1/entries?limit=501", "/v1/entries?kind=%27%20OR%201=1", "/v1/entries?after=zz",
     "/v1/entries/%27%20OR%201=1", "/v1/events?subject=%00", "/v1/entries/abc/edges?after=1:x",
     "/v1/entries/abc/edges?after=1:%00:2", "/v1/activities/abc", "/v1/activities?run=%00"],
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 422


@pytest.mark.parametrize("sent", ["", "Bearer ", "Bearer wrong-token-of-some-length", f"Basic {TOKEN}", "Bearer é"])
def test_nothing_is_told_without_the_token(registry: Registry, sent: str) -> None:
    stranger = TestClient(api(registry, TOKEN), headers={"Authorization": sent.encode("latin-1")} if sent else {})
    one = f"/v1/entries/{'e' * 64}"
    for path in ("/v1/entries", "/v1/events", "/v1/activities", f"/v1/activities/{'e' * 64}", one, f"{one}/tree"):
        answer = stranger.get(path)
        assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.json() == {"detail": "no token, or not the right one"}
    assert stranger.get("/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_written(client: TestClient, registry: Registry, method: str) -> None:
    before = registry.head()
    for path in ("/v1/entries", "/v1/events", f"/v1/entries/{'e' * 64}"):
        assert client.request(method, path, json={}).status_code == 405
    assert registry.head() == before


def test_the_page_runs_its_own_script_alone_and_loads_nothing(client: TestClient) -> None:
    answer = client.get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert policy == content_policy(answer.text) and policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy and "http" not in browser_page().replace("</html>", "").replace("<!doctype html>", "")
    for word in ("innerHTML", "document.write", "eval(", ' onclick="', 'style="'):
        assert word not in browser_page()
    assert answer.headers["X-Frame-Options"] == "DENY"


def test_a_hostile_name_is_data(client: TestClient) -> None:
    answer = client.get(f"/v1/entries/{'e' * 64}")
    assert answer.headers["Content-Type"] == "application/json" and answer.json()["name"] == HOSTILE
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_schemathesis_finds_no_answer_that_the_description_does_not_allow(registry: Registry) -> None:
    import schemathesis

    schema = schemathesis.openapi.from_asgi("/openapi.json", api(registry, TOKEN))

    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 8
    for operation in operations:

        @settings(max_examples=25, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def answers(case: Any) -> None:
            case.call_and_validate(headers=HEADERS)

        answers()


@pytest.mark.parametrize(
    ("arguments", "token", "line"),
    [
        ([], "", "IAR_API_TOKEN: no token; set IAR_API_TOKEN, give --token-file, or on this machine alone --no-auth"),
        ([], "short", "IAR_API_TOKEN: too weak; make one of 16 ASCII characters or more: openssl rand -hex 32"),
        (["--no-auth", "--address", "0.0.0.0"], "", "--no-auth at 0.0.0.0: everybody on the network could read"),
        (["--token-file", "/nowhere/token"], "", "--token-file /nowhere/token: No such file or directory"),
    ],
)
def test_it_does_not_start_open(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], token: str, line: str
) -> None:
    monkeypatch.setenv("IAR_API_TOKEN", token)
    assert cli.call(["registry", "serve", *arguments]) == 2
    assert line in capsys.readouterr().err


def test_the_command_serves_a_registry(registry: Registry, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "token").write_text(TOKEN + "\n")
    state = Path(registry.engine.url.database or "").parent
    command = ["registry", "serve", "--port", str(port), "--token-file", str(tmp_path / "token"), "--state", str(state)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-m", "iar.cli", *command], env=environment) as process:
        try:
            answer = first_answer(f"http://127.0.0.1:{port}/v1/entries?kind=report")
            assert json.loads(answer.content)["items"][0]["name"] == HOSTILE
            assert httpx.get(f"http://127.0.0.1:{port}/v1/entries").status_code == 401
        finally:
            process.terminate()


def first_answer(url: str) -> httpx.Response:
    deadline = time.monotonic() + 120
    while True:
        try:
            return httpx.get(url, headers=HEADERS)
        except httpx.ConnectError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
