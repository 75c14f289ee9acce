"""What a pipeline task was given in Kubernetes' own terms, handed on to the job that it launches.

Kubeflow passes it to the component (dsl.TaskConfig); the component leaves it in a variable of its process, where the
launcher finds it, so that stages and trainer know nothing of Kubernetes.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from iar.methods.job_spec import TaskSettings

VARIABLE = "IAR_TASK_SETTINGS"


def hand_on(config: Mapping[str, Any]) -> None:
    """Leave the fields of a dsl.TaskConfig for `task_settings`; a field that is None was not set."""
    os.environ[VARIABLE] = json.dumps({name: value for name, value in config.items() if value is not None})


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
