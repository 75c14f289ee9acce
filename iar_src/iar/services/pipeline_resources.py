"""The compiled pipeline as Kubernetes resources for GitOps, and the names that follow from its content."""

from typing import Any

import yaml

from iar.config import RunFile
from iar.methods.digest import digest_text

API = "pipelines.kubeflow.org/v2beta1"
SYNC_WAVE = "argocd.argoproj.io/sync-wave"
SHOWN_DIGITS = 10


def pipeline_name(run_file: RunFile) -> str:
    """Return the pipeline that all compiled versions of run files of this name belong to."""
    return f"iar-{run_file.run.name}".rstrip("-")


def version_name(run_file: RunFile, ir: str) -> str:
    """Return the version's name, from its content: a version cannot be changed, so other content is another one."""
    return f"{pipeline_name(run_file)}-{digest_text(ir)[:SHOWN_DIGITS]}"


def kubernetes_resources(run_file: RunFile, ir: str, namespace: str = "") -> str:
    """Return the YAML of a Pipeline and its PipelineVersion from compiled IR; the same input gives the same text.

    The sync waves matter: a version is refused where its pipeline is not there yet.
    """
    pipeline_spec, *platform = yaml.safe_load_all(ir)
    name, version = pipeline_name(run_file), version_name(run_file, ir)
    spec = {
        "pipelineName": name,
        "displayName": version,
        "description": f"Run file {run_file.run_id}, sha256:{run_file.digest}",
        "pipelineSpec": pipeline_spec,
    }
    if platform:
        spec["platformSpec"] = platform[0]
    about = {"displayName": name, "description": pipeline_spec["pipelineInfo"].get("description", "")}
    documents = [
        _resource("Pipeline", name, namespace, 0, about),
        _resource("PipelineVersion", version, namespace, 1, spec),
    ]
    text: str = yaml.safe_dump_all(documents, sort_keys=True, allow_unicode=True)
    return text


def _resource(kind: str, name: str, namespace: str, wave: int, spec: dict[str, Any]) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "annotations": {SYNC_WAVE: str(wave)}}
    metadata["labels"] = {"app.kubernetes.io/part-of": "iar"}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec}
