"""Places that a pod cannot reach are refused wherever a run file goes to a cluster; all others are taken."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from iar import cli
from iar.config import RunFile
from iar.services.cluster_places import out_of_reach
from iar.services.run_files import load_run_file

ROOT = Path(__file__).parents[2]
SERVER = {"name": "t", "model": "m"}
RULES = ["rule:exact", "rule:token-f1"]


def run_file(**sections: Any) -> RunFile:
    whole = {"run": {"name": "t"}, "documents": {"path": "/state/documents"}, "platform": {"backend": "kubeflow"}}
    return RunFile.model_validate(whole | sections)


def on(url: str) -> dict[str, str]:
    return SERVER | {"base_url": url}


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"documents": {"path": "docs"}}, "documents.path: docs is relative"),
        ({"documents": {"path": "~/docs"}}, "documents.path: ~/docs is relative"),
        ({"documents": {"path": "examples/../docs"}}, "documents.path: examples/../docs is relative"),
        ({"evaluate": {"msbench": "suites/short.jsonl"}}, "evaluate.msbench: suites/short.jsonl is relative"),
        ({"baselines": {"replay_data": "replay.jsonl"}}, "baselines.replay_data: replay.jsonl is relative"),
        ({"model": {"source": "./models/mine"}}, "model.source: ./models/mine is relative"),
        ({"qa_build": {"teacher": on("http://localhost:8000/v1")}}, "qa_build.teacher.base_url: http://localhost:8000"),
        ({"evaluate": {"judges": [*RULES, on("http://127.0.0.1:1/v1")]}}, "evaluate.judges[2].base_url: http://127.0"),
        ({"evaluate": {"judges": [*RULES, on("http://[::1]:1/v1")]}}, "evaluate.judges[2].base_url: http://[::1]:1/v1"),
        ({"evaluate": {"judges": [*RULES, on("http://0.0.0.0/v1")]}}, "evaluate.judges[2].base_url: http://0.0.0.0/v1"),
        ({"register": {"tracking_uri": "http://LOCALHOST:5000"}}, "register.tracking_uri: http://LOCALHOST:5000 is"),
        ({"register": {"registry_url": "postgresql://localhost/iar"}}, "register.registry_url: postgresql://localhost"),
        ({"register": {"registry_url": "postgresql:///iar"}}, "register.registry_url: postgresql:///iar is"),
    ],
)
def test_what_only_this_machine_has_is_named_with_its_key_and_a_fix(sections: dict[str, Any], key: str) -> None:
    (line,) = out_of_reach(run_file(**sections))
    assert line.startswith(key)
    assert line.endswith(("such as /state/documents", "such as http://teacher:8000"))


@pytest.mark.parametrize(
    "sections",
    [
        {"documents": {"path": "examples/documents"}},
        {"model": {"source": "/state/models/x"}, "baselines": {"cpt_model": "Qwen/Qwen3-4B-Base"}},
        {"evaluate": {"ifeval": "google/IFEval", "mmlu": "cais/mmlu", "msbench": "/state/suites/m.jsonl"}},
        {"evaluate": {"judges": [*RULES, on("https://localhost.example.com/v1")]}},
        {"register": {"tracking_uri": "http://mlflow:5000", "registry_url": "postgresql://postgres/iar"}},
        {"register": {"registry_url": "postgresql:///iar?host=postgres"}},
        {"register": {"registry_url": "sqlite:////state/registry.sqlite"}},
    ],
)
def test_what_a_pod_reaches_is_taken(sections: dict[str, Any]) -> None:
    assert list(out_of_reach(run_file(**sections))) == []


def test_without_a_claim_nothing_may_lie_on_the_state_volume() -> None:
    servers = {"register": {"tracking_uri": "http://mlflow:5000", "registry_url": "postgresql://postgres/iar"}}
    none = {
        "run": {"name": "t", "store": "s3://models/iar"},
        "platform": {"backend": "kubeflow", "pool": {"state_claim": ""}},
        "documents": {"path": "/data/documents"},
    }
    assert list(out_of_reach(run_file(**none, **servers))) == []
    lines = list(out_of_reach(run_file(**none | {"documents": {"path": "/state/documents"}})))
    assert [line.partition(":")[0] for line in lines] == [
        "documents.path",
        "register.registry_url",
        "register.tracking_uri",
    ]
    assert all("platform.pool.state_claim names none; " in line for line in lines)
    assert "names none; name an s3:// prefix, name it by its id on the hub, or name a claim" in lines[0]
    assert list(out_of_reach(run_file(**none | {"documents": {"path": "s3://corpus/year=2026"}}, **servers))) == []
    with pytest.raises(ValueError, match=r"so tasks share nothing; name a volume claim, or a place such as s3://"):
        run_file(**none | {"run": {"name": "t"}})
    teacher = {"name": "t", "base_url": "http://h/v1", "model": "m"}
    assert run_file(**none, qa_build={"teacher": teacher, "shards": 2}).qa_build.shards == 2
    with pytest.raises(ValueError, match=r"qa_build.shards 2 with a budget .* each shard would spend the whole budget"):
        run_file(**none, qa_build={"teacher": teacher | {"budget_calls": 9}, "shards": 2})


@pytest.mark.parametrize("overlay", ["dev", "a100"])
def test_the_run_files_of_the_overlays_name_what_the_cluster_has(overlay: str) -> None:
    assert list(out_of_reach(load_run_file(ROOT / "manifests" / "overlays" / overlay / "run.yaml"))) == []


def test_no_command_sends_an_unreachable_place_or_a_local_run_to_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "runs").mkdir()
    path, out = folder / "a.yaml", tmp_path / "out.yaml"
    sections = {"documents": {"path": "docs"}, "register": {"tracking_uri": "http://localhost:5000"}}
    commands = (["compile", path, "--kubernetes", "-o", out], ["submit", path], ["reconcile", folder, "--dry-run"])
    for command in commands:
        path.write_text(json.dumps(run_file(**sections).model_dump(mode="json")))
        assert cli.call([str(part) for part in command]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert [line.split(": ")[:3] for line in lines] == [
            ["error", str(path), "documents.path"],
            ["error", str(path), "register.tracking_uri"],
        ]
        path.write_text(yaml.safe_dump({"run": {"name": "t"}, "documents": {"path": "/state/documents"}}))
        assert cli.call([str(part) for part in command]) == 2
        refused = f"error: {path}: platform.backend: 'local' is run by iar run; set kubeflow"
        assert capsys.readouterr().err.startswith(refused)
    assert not out.exists()


def test_a_run_file_of_the_paper_becomes_resources_with_the_clusters_own_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.yaml"
    changes = ["platform.backend=kubeflow", "documents.path=/state/documents", "qa_build.teacher=offline"]
    changes.append("evaluate.judges=[rule:exact, rule:token-f1, rule:char-ngram]")
    options = [part for change in changes for part in ("--set", change)]
    path = ROOT / "pipelines" / "runs" / "llama-3.2-3b-cc.yaml"
    assert cli.call(["compile", str(path), "--kubernetes", "-o", str(out), *options]) == 0, capsys.readouterr().err
    _, version = yaml.safe_load_all(out.read_text())
    executors = version["spec"]["platformSpec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert all(executor["pvcMount"] for executor in executors.values())
