"""Exports of a real run's registry, each read by the library of its own format."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from iar import cli
from iar.methods.digest import digest_file, digest_json
from iar.methods.provenance import AGENTS, ROWS, Provenance, scores_payload
from iar.records import EvalCheck, Lineage, ModelScores, SuiteScore, to_json, write_json
from iar.services.provenance import dataset_folder, provenance_of
from iar.services.registry import Producer, Registry
from iar.services.registry_pages import page
from iar.services.scores_outcome import scores_outcome
from iar.services.suites import SUITES
from iar.services.workspace import CHECKS, Workspace
from tests.finished_run import PEOPLE, Finished
from tests.services.registry_cases import entry


@pytest.fixture(scope="module")
def state(finished: Finished) -> Path:
    return Workspace.of(finished.settings).state


@pytest.fixture(scope="module")
def registry(state: Path) -> Registry:
    return Registry.open(f"sqlite:///{state}/registry.sqlite")


def named(registry: Registry, kind: str, name: str) -> Provenance:
    """Return the provenance of the first entry of this kind and name."""
    digest = next(one.digest for one in page(registry, kind, "", 1000) if one.name == name)
    return provenance_of(registry, digest)


def model_id(registry: Registry, finished: Finished) -> str:
    name = f"{finished.settings.register.model_name} {finished.pick}"
    return named(registry, "checkpoint", name).subject.digest


def export(id_: str, format_: str, out: Path, state: Path) -> Path:
    assert cli.call(["lineage", "export", id_, "--format", format_, "--out", str(out), "--state", str(state)]) == 0
    return out


def test_openlineage_events_are_what_its_client_makes_of_them(
    finished: Finished, registry: Registry, state: Path, tmp_path: Path
) -> None:
    from openlineage.client import event_v2, facet_v2
    from openlineage.client.serde import Serde

    path = export(model_id(registry, finished), "openlineage", tmp_path / "events.jsonl", state)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        rebuilt = event_v2.RunEvent(
            eventType=event_v2.RunState[event["eventType"]],
            eventTime=event["eventTime"],
            run=event_v2.Run(event["run"]["runId"]),
            job=event_v2.Job(event["job"]["namespace"], event["job"]["name"]),
            inputs=[event_v2.InputDataset(one["namespace"], one["name"]) for one in event["inputs"]],
            outputs=[event_v2.OutputDataset(one["namespace"], one["name"]) for one in event["outputs"]],
            producer=event["producer"],
        )
        assert without_facets(json.loads(Serde.to_json(rebuilt))) == without_facets(event)
        facets = event["run"]["facets"]
        parent = facet_v2.parent_run.ParentRunFacet(
            run=facet_v2.parent_run.Run(facets["parent"]["run"]["runId"]),
            job=facet_v2.parent_run.Job(**facets["parent"]["job"]),
            producer=event["producer"],
        )
        assert without_facets(json.loads(Serde.to_json(parent))) == without_facets(facets["parent"])
        job_type = facet_v2.job_type_job.JobTypeJobFacet(
            processingType="BATCH", integration="IAR", jobType="TASK", producer=event["producer"]
        )
        assert json.loads(Serde.to_json(job_type)) == event["job"]["facets"]["jobType"]
    stages = [event["job"]["name"] for event in events if event["eventType"] == "COMPLETE"]
    assert stages[0] == "qa-build" and stages[-1] == "register"
    assert {"inject", "align", "vanilla", "merge-candidate-1", "selector"} <= set(stages)


def without_facets(value: Any) -> Any:
    """Return an event without its facets, which are compared one by one, and without what is empty."""
    if isinstance(value, dict):
        kept = {key: without_facets(inner) for key, inner in value.items() if key not in ("facets", "inputFacets")}
        return {key: inner for key, inner in kept.items() if inner not in ({}, [], None)}
    return [without_facets(inner) for inner in value] if isinstance(value, list) else value


def test_every_output_of_an_event_is_there_before_it_is_an_input(
    finished: Finished, registry: Registry, state: Path, tmp_path: Path
) -> None:
    path = export(model_id(registry, finished), "openlineage", tmp_path / "events.jsonl", state)
    made: set[str] = set()
    for event in map(json.loads, path.read_text().splitlines()):
        sources = {one["name"] for one in event["inputs"]} - made
        # Nothing makes theta_0, the files and the general suites: the registry has them as sources.
        assert all(name.startswith(("source:", "checkpoint:", "eval-set:")) for name in sources)
        made |= {one["name"] for one in event["outputs"]}
    assert any(name.startswith("dataset:") for name in made)


def test_prov_json_says_what_the_registry_says(
    finished: Finished, registry: Registry, state: Path, tmp_path: Path
) -> None:
    from prov.model import ProvAgent, ProvAttribution, ProvDerivation, ProvDocument, ProvEntity, ProvUsage

    found = provenance_of(registry, model_id(registry, finished))
    path = export(found.subject.digest, "prov", tmp_path / "prov.json", state)
    document = ProvDocument.deserialize(content=path.read_text(), format="json")

    agents = [entry for entry in found.entries.values() if entry.kind in AGENTS]
    assert len(list(document.get_records(ProvEntity))) == len(found.entries) - len(agents)
    codes = {one.code_version for one in found.activities.values()}
    assert len(list(document.get_records(ProvAgent))) == len(agents) + len(codes) > len(codes)
    assert {kind for kind in ROWS if found.of_kind(kind)} >= {"chunk", "qa"}
    data = [one for one in found.links if found.entries[one.input].kind not in AGENTS]
    assert len(list(document.get_records(ProvDerivation))) == len({(o.product, o.input, o.activity) for o in data})
    assert list(document.get_records(ProvAttribution))
    roles = {str(role) for use in document.get_records(ProvUsage) for role in use.get_attribute("prov:role")}
    assert roles == {one.role for one in data}
    assert ProvDocument.deserialize(content=document.serialize(format="json"), format="json") == document


def test_croissant_reads_the_records_of_the_dataset(
    finished: Finished, registry: Registry, state: Path, tmp_path: Path
) -> None:
    import mlcroissant

    dataset = named(registry, "dataset", "qa").subject
    folder = dataset_folder(state, dataset)
    beside = shutil.copytree(folder, tmp_path / "published")
    path = export(dataset.digest, "croissant", beside / "croissant.json", state)

    read = mlcroissant.Dataset(jsonld=str(path))

    assert read.metadata.ctx.conforms_to.value == "http://mlcommons.org/croissant/1.1"
    assert not list(read.metadata.ctx.issues.errors)
    for split in ("train", "validation", "test"):
        rows = [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]
        records = list(read.records(split))
        assert [record[f"{split}/question"].decode() for record in records] == [row["question"] for row in rows]
        assert len(rows) == dataset.payload[split]
    documents = [record["documents/title"].decode() for record in read.records("documents")]
    assert sorted(documents) == sorted(name for name, *_ in PEOPLE)


def test_croissant_names_every_file_by_its_bytes(
    finished: Finished, registry: Registry, state: Path, tmp_path: Path
) -> None:
    dataset = named(registry, "dataset", "qa").subject
    path = export(dataset.digest, "croissant", tmp_path / "croissant.json", state)
    recorded = {one["name"]: one["sha256"] for one in json.loads(path.read_text())["distribution"]}
    folder = dataset_folder(state, dataset)
    assert len(recorded) == 5
    assert recorded == {name: digest_file(folder / name) for name in recorded}


def test_the_validation_split_is_described_as_the_one_file_it_is(
    finished: Finished, registry: Registry, state: Path, tmp_path: Path
) -> None:
    dataset = named(registry, "dataset", "validation").subject
    path = export(dataset.digest, "croissant", tmp_path / "croissant.json", state)
    assert [one["@id"] for one in json.loads(path.read_text())["recordSet"]] == ["validation"]


def test_the_ml_bom_is_valid_and_names_datasets_and_base_model(
    finished: Finished, registry: Registry, state: Path, tmp_path: Path
) -> None:
    from cyclonedx.model.bom import Bom
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    found = provenance_of(registry, model_id(registry, finished))
    text = export(found.subject.digest, "cyclonedx", tmp_path / "bom.json", state).read_text()
    bom = json.loads(text)

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert Bom.from_json(bom).validate()
    base = Path(finished.settings.model.source).name
    names = {part["name"]: part for part in bom["components"]}
    assert {"qa", "validation", "theta_I", "theta_IA", finished.pick, base} <= set(names)
    # Models that the pick was only compared with are no parts of it.
    assert "vanilla" not in names and len([name for name in names if name.startswith("slerp")]) <= 1
    assert {part["type"] for part in names.values()} == {"data", "machine-learning-model"}
    card = bom["metadata"]["component"]["modelCard"]
    assert {one["ref"] for one in card["modelParameters"]["datasets"]} == {
        names["qa"]["bom-ref"], names["validation"]["bom-ref"]
    }  # fmt: skip
    suites = {metric["type"] for metric in card["quantitativeAnalysis"]["performanceMetrics"]}
    assert suites == {"domain", "ifeval", "mmlu", "msbench", "general"}
    edges = {one["ref"]: one["dependsOn"] for one in bom["dependencies"]}
    assert set(edges[names["theta_I"]["bom-ref"]]) == {names[base]["bom-ref"], names["qa"]["bom-ref"]}


def test_the_model_card_is_one_of_the_hub(finished: Finished, registry: Registry, state: Path, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    found = provenance_of(registry, model_id(registry, finished))
    card = ModelCard.load(export(found.subject.digest, "model-card", tmp_path / "README.md", state))

    assert card.data.library_name == "transformers" and card.data.pipeline_tag == "text-generation"
    results = {(one.dataset_type, one.dataset_split): one.metric_value for one in card.data.eval_results}
    (tested,) = [one for one in found.scores if one.payload["split"] == "test"]
    assert results["general", "test"] == round(tested.payload["general"], 2)
    assert results.keys() >= {("domain", "validation"), ("mmlu", "test")}
    assert "theta\\_0" in card.text and str(state) not in card.content


def test_a_second_look_at_the_test_is_said_beside_its_scores(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    registry = Registry.open(f"sqlite:///{tmp_path}/registry.sqlite")
    model, mark = entry("checkpoint", "m"), "1 of 2 questions taken before by 1 other model (ties-d0.3)"
    suites = (SuiteScore("domain", 50.0, 40.0, 60.0, 2, 0),)
    made = [model]
    for split, told in (("validation", ""), ("test", mark)):
        payload = scores_payload(ModelScores("m", split, model.digest, suites, 50.0, 50.0, 40.0, 60.0), told)
        made.append(Lineage("scores", digest_json(payload), f"m on {split}", payload, (("evaluated", model.digest),)))
    registry.record(made, Producer("r", "s", "1", "c", 17, 0.0, 1.0))

    card = ModelCard.load(export(model.digest, "model-card", tmp_path / "README.md", tmp_path))
    assert "**Not a first look at the test**: 1 of 2 questions taken before by 1 other model" in card.text
    names = {(one.dataset_type, one.dataset_split): one.dataset_name for one in card.data.eval_results}
    assert names["domain", "test"] == "domain, test, no first look"
    assert names["domain", "validation"] == "domain, validation"
    bom = json.loads(export(model.digest, "cyclonedx", tmp_path / "bom.json", tmp_path).read_text())
    metrics = bom["metadata"]["component"]["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    slices = {one["slice"] for one in metrics}
    assert slices == {"validation split, points of 100", f"test split, points of 100; {mark}"}


def test_the_dataset_card_loads_the_dataset(
    finished: Finished, registry: Registry, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import load_dataset
    from huggingface_hub import DatasetCard

    dataset = named(registry, "dataset", "qa").subject
    published = shutil.copytree(dataset_folder(state, dataset), tmp_path / "published")
    card = DatasetCard.load(export(dataset.digest, "dataset-card", published / "README.md", state))

    assert card.data.size_categories == ["n<1K"] and str(state) not in card.content
    loaded = load_dataset(str(published), cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in loaded.items()} == {
        split: dataset.payload[split] for split in ("train", "validation", "test")
    }


@pytest.mark.parametrize(
    ("format_", "kind", "name", "line"),
    [
        ("croissant", "checkpoint", "theta_I", "--format croissant describes a dataset, and checkpoint:"),
        ("cyclonedx", "dataset", "qa", "--format cyclonedx describes a checkpoint or a candidate, and dataset:"),
        ("rdf", "dataset", "qa", "--format 'rdf': not one of openlineage, prov, croissant, cyclonedx, model-card"),
    ],
)
def test_a_format_that_does_not_fit_is_refused_and_nothing_written(
    registry: Registry, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    format_: str, kind: str, name: str, line: str,
) -> None:  # fmt: skip
    id_ = named(registry, kind, name).subject.digest
    out = tmp_path / "out"
    assert cli.call(["lineage", "export", id_, "--format", format_, "--out", str(out), "--state", str(state)]) == 2
    assert line in capsys.readouterr().err and not out.exists()


def test_a_dataset_whose_files_are_elsewhere_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = Registry.open(f"sqlite:///{tmp_path}/registry.sqlite")
    dataset = entry("dataset", "qa")
    registry.record([dataset], Producer("r", "s", "1", "c", 17, 0.0, 1.0))
    arguments = ["--format", "croissant", "--out", str(tmp_path / "out.json"), "--state", str(tmp_path)]
    assert cli.call(["lineage", "export", dataset.digest, *arguments]) == 2
    assert f"(qa): no artifact in {tmp_path} holds its files; name the state folder" in capsys.readouterr().err


def test_hostile_names_stay_text_in_a_card(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    registry = Registry.open(f"sqlite:///{tmp_path}/registry.sqlite")
    base = entry("checkpoint", "---\nlicense: mit\n<script>alert(1)</script> | [x](http://evil)")
    registry.record([base], Producer("r", "s", "1", "c", 17, 0.0, 1.0))
    card = ModelCard.load(export(base.digest, "model-card", tmp_path / "README.md", tmp_path))
    assert "license" not in card.data.to_dict() and "<script>" not in card.text.replace("\\<script\\>", "")
    assert "\\[x\\](" in card.text


@pytest.mark.parametrize("missing", [{}, {"mmlu": "no network"}])
def test_scores_on_an_unchecked_evaluation_are_published_with_a_warning(
    tmp_path: Path, missing: dict[str, str]
) -> None:
    names = ("validation", "ifeval", "mmlu", "msbench")
    checks = [EvalCheck("questions", name, "e" * 64, 9, 9, 9, 0, 2, missing.get(name, "")) for name in names]
    write_json(tmp_path / CHECKS, [to_json(check) for check in checks])
    model = entry("checkpoint", "theta_R")
    suites = tuple(SuiteScore(name, 50, 40, 60, 10, 0) for name in SUITES)
    scores = ModelScores("theta_R", "validation", model.digest, suites, 50, 50, 40, 60)
    registry = Registry.open(f"sqlite:///{tmp_path}/registry.sqlite")
    made = [model, *scores_outcome(tmp_path, [scores], {"data": tmp_path}).lineage]
    registry.record(made, Producer("r", "s", "1", "c", 17, 0.0, 1.0))

    card = export(model.digest, "model-card", tmp_path / "README.md", tmp_path).read_text()
    bom = json.loads(export(model.digest, "cyclonedx", tmp_path / "bom.json", tmp_path).read_text())
    assert "50.0 (40.0 to 60.0)" in card
    assert ("**UNCHECKED for contamination, so scores on them may flatter: mmlu.**" in card) == bool(missing)
    limits = bom["metadata"]["component"]["modelCard"]["considerations"]["technicalLimitations"]
    warning = "Training data was not checked against mmlu: scores on them may flatter."
    assert (warning in limits) == bool(missing) and len(limits) == 2 + bool(missing)
    # Whoever looks for the scores by their own digest finds them.
    assert registry.find(digest_json(to_json(scores))).kind == "scores"
