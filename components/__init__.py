"""Kubeflow adapters, one a stage: references in, one call into the package, a reference out."""

from functools import partial

from kfp import dsl

from iar.config import PlatformSection

# The pipeline puts the run file's own image in place of this one.
component = partial(dsl.component, base_image=PlatformSection().image, install_kfp_package=False)
