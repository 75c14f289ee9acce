"""What a pipeline task was given in Kubernetes' own terms, for the job that it launches, and where that job is shown.

Kubeflow passes it to the component (dsl.TaskConfig); the component leaves it in variables of its process, where the
launcher finds it, so that stages and trainer know nothing of Kubernetes.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iar.methods.job_spec import Manifest, TaskSettings

VARIABLE = "IAR_TASK_SETTINGS"
SHOWN_AT = "IAR_JOB_MANIFEST"
NO_JOB = "# No job was launched: the result was there already, or platform.backend is local.\n"


def hand_on(config: Mapping[str, Any], shown_at: str = "") -> None:
    """Leave the fields of a dsl.TaskConfig for `task_settings`, None = not set, and the file for `show_manifest`."""
    os.environ[VARIABLE] = json.dumps({name: value for name, value in config.items() if value is not None})
    os.environ[SHOWN_AT] = shown_at
    if shown_at:
        Path(shown_at).parent.mkdir(parents=True, exist_ok=True)
        Path(shown_at).write_text(NO_JOB, encoding="utf-8")


def show_manifest(manifest: Manifest) -> None:
    """Write a job as YAML to the file that the UI shows, if this process is a pipeline task."""
    import yaml

    if shown_at := os.environ.get(SHOWN_AT):
        Path(shown_at).write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")


def task_settings() -> TaskSettings:
    """Return what was left in this process, nothing where it is no pipeline task."""
    given = json.loads(os.environ.get(VARIABLE, "{}"))
    return TaskSettings(
        env=tuple(given.get("env", ())),
        volumes=tuple(given.get("volumes", ())),
        mounts=tuple(given.get("volume_mounts", ())),
        tolerations=tuple(given.get("tolerations", ())),
        node_selector=given.get("node_selector", {}),
        affinity=given.get("affinity", {}),
        resources=given.get("resources", {}),
    )
