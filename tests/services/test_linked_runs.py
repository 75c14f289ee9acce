"""MLflow and the provenance registry of a real run lead to each other."""

from pathlib import Path
from typing import Any

import pytest

from iar.records import Lineage
from iar.services.finalist import finalist
from iar.services.linked_runs import REGISTERED, TRACKED, dataset_uses, link_run, made_ids
from iar.services.registry import Producer, Registry
from iar.services.tracking import Tracker
from iar.services.workspace import Workspace
from tests.finished_run import Finished
from tests.services.registry_cases import entry


@pytest.fixture
def registry(finished: Finished) -> Registry:
    return Registry.open(f"sqlite:///{Workspace.of(finished.settings).state}/registry.sqlite")


@pytest.fixture
def tracked(finished: Finished) -> dict[str, Any]:
    """Return the MLflow runs of the finished run by name."""
    settings = finished.settings
    with Tracker(settings, settings.run_id, Workspace.of(settings).state).opened() as client:
        experiment = client.get_experiment_by_name(settings.register.experiment)
        found = client.search_runs([experiment.experiment_id], f"tags.`iar.run_id` = '{settings.run_id}'")
    return {run.info.run_name: run for run in found}


def test_a_training_names_its_dataset_and_its_checkpoint(tracked: dict[str, Any], registry: Registry) -> None:
    (used,) = tracked["inject"].inputs.dataset_inputs
    tags = {tag.key: tag.value for tag in used.tags}
    assert tags["mlflow.data.context"] == "trained-on" and used.dataset.name == "qa"
    assert registry.find(tags["iar.lineage"]).payload["pairs"] > 0
    assert registry.find(tracked["inject"].data.tags["iar.lineage"]).name == "theta_I"
    (made,) = tracked["qa-build"].inputs.dataset_inputs
    assert made.dataset.digest == used.dataset.digest


def test_the_registry_knows_the_mlflow_run_of_an_activity(tracked: dict[str, Any], registry: Registry) -> None:
    for name in ("qa-build", "inject", "selector"):
        activity = tracked[name].data.tags["iar.activity"]
        (event,) = [event for event in registry.events(activity) if event.kind == TRACKED]
        assert event.payload["run"] == tracked[name].info.run_id
        made = registry.find(tracked[name].data.tags["iar.lineage"].split(", ")[0])
        assert activity in {edge.activity for edge in registry.upstream(made.digest)}


def test_model_and_version_lead_to_each_other(finished: Finished, registry: Registry) -> None:
    model = finalist(finished.settings).lineage
    (event,) = [event for event in registry.events(model) if event.kind == REGISTERED]
    settings = finished.settings
    with Tracker(settings, settings.run_id, Workspace.of(settings).state).opened() as client:
        version = client.get_model_version(event.payload["model"], event.payload["version"])
    assert version.tags["iar.lineage"] == model


def test_what_a_task_made_and_used_is_told_apart(tmp_path: Path) -> None:
    registry = Registry.open(f"sqlite:///{tmp_path}/registry.sqlite")
    row, other = entry("qa", "q"), entry("dataset", "old")
    fresh = Lineage("dataset", "f" * 64, "new", {"pairs": 1}, (("contains", row.digest), ("made-from", other.digest)))
    producer = Producer("r", "s", "1", "c", 17, 0.0, 1.0)
    registry.record([row, other, fresh], producer)

    uses = {(use.name, use.role) for use in dataset_uses(registry, [row, fresh])}
    assert uses == {("new", "made"), ("old", "made-from")}
    assert made_ids([row, fresh]) == ["dataset:" + "f" * 12]
    for _ in range(2):
        link_run(registry, producer.id, "sqlite:///mlflow.db", "run-1")
    assert len(registry.events(producer.id)) == 1
