"""The hand-over to KServe: where a cluster finds a promoted model's files, and the InferenceService for them."""

import re
from typing import Any

from iar.config import RunFile
from iar.methods.digest import digest_text
from iar.services.workspace import Ref, Workspace

API, KIND = "serving.kserve.io/v1beta1", "InferenceService"
# What KServe's storage initializer fetches by itself; MLflow's own addresses it does not know.
FETCHED = ("s3://", "gs://")
# KServe adds suffixes and the namespace to the name, and all of it must fit into 63 characters.
NAME_CHARACTERS = 30


def storage_uri(run_file: RunFile, source: str, register: Ref) -> str:
    """Return where KServe finds the files of a version, "" where it cannot.

    `source` is MLflow's address of the version. Where that is no bucket, the same files lie in the artifact `register`
    on the state volume of a run on Kubeflow.
    """
    if source.startswith(FETCHED):
        return source
    if run_file.platform.backend != "kubeflow" or not run_file.platform.pool.state_claim:
        return ""
    place = (register.path / "model").relative_to(Workspace.of(run_file).state)
    return f"pvc://{run_file.platform.pool.state_claim}/{place.as_posix()}"


def service_name(model: str, alias: str) -> str:
    """Return a name that Kubernetes takes for model and alias; another model never gets the same."""
    wanted = f"{model}-{alias}"
    name = re.sub(r"[^a-z0-9]+", "-", wanted.lower()).strip("-")
    if name == wanted and len(name) <= NAME_CHARACTERS and name[0].isalpha():
        return name
    digest = digest_text(wanted)[:6]
    return f"iar-{name[: NAME_CHARACTERS - 11].strip('-')}-{digest}"


def inference_service(run_file: RunFile, alias: str, storage: str, annotations: dict[str, str]) -> dict[str, Any]:
    """Return the InferenceService for what an alias points at: KServe's Hugging Face runtime on one GPU of the pool.

    Nothing in it lets the runtime trust code of the model's folder. Its container meets pod security `restricted`,
    where the runtime by itself leaves out seccomp; so does the one that KServe puts before it, with the same context.
    """
    pool, model = run_file.platform.pool, run_file.register.model_name
    amounts = {"cpu": f"{pool.cpus_per_process:g}", "memory": f"{pool.memory_gb_per_process:g}Gi"}
    if pool.gpu:
        amounts[pool.gpu] = "1"
    predictor: dict[str, Any] = {
        "minReplicas": 1,
        "model": {
            "modelFormat": {"name": "huggingface"},
            "storageUri": storage,
            "args": [f"--model_name={model}"],
            "resources": {"requests": amounts, "limits": dict(amounts)},
            "securityContext": {
                "runAsNonRoot": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }
    if pool.gpu:
        predictor["nodeSelector"] = dict(pool.node_selector)
        predictor["tolerations"] = [{"key": key, "operator": "Exists"} for key in pool.tolerations]
    metadata = {
        "name": service_name(model, alias),
        "labels": {"app.kubernetes.io/part-of": "iar"},
        "annotations": annotations,
    }
    return {"apiVersion": API, "kind": KIND, "metadata": metadata, "spec": {"predictor": predictor}}
