"""Kubeflow adapters, one a stage: references in, one call into the package, a reference out."""

from functools import partial

from kfp import dsl

from iar.config import PlatformSection

# The pipeline puts the run file's own image in place of this one.
component = partial(dsl.component, base_image=PlatformSection().image, install_kfp_package=False)

# What is set on a task that trains goes to its job; the task itself launches it, with the same volumes and variables.
launcher = partial(
    component,
    task_config_passthroughs=[
        dsl.TaskConfigField.RESOURCES,
        dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR,
        dsl.TaskConfigField.KUBERNETES_TOLERATIONS,
        dsl.TaskConfigField.KUBERNETES_AFFINITY,
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.ENV, apply_to_task=True),
        dsl.TaskConfigPassthrough(field=dsl.TaskConfigField.KUBERNETES_VOLUMES, apply_to_task=True),
    ],
)
