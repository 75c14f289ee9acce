"""The schemas of the custom resources that we make, where they lie beside the repository, read as strictly as we write.

IAR_SHARED names the folder that holds `crds/`; without it, it is `shared` beside the repository.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

CRDS = Path(os.environ.get("IAR_SHARED") or Path(__file__).parents[2] / "shared") / "crds"

needs_crds = pytest.mark.skipif(not CRDS.is_dir(), reason="no schemas of custom resources; IAR_SHARED names them")


@cache
def schemas() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the schema of each (apiVersion, kind)."""
    found = {}
    # Thousands of lines: the loader in C where there is one.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in CRDS.glob("*.yaml"):
        spec = yaml.load(path.read_text(encoding="utf-8"), loader)["spec"]
        for version in spec["versions"]:
            key = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
            found[key] = _strict(version["schema"]["openAPIV3Schema"])
    return found


def check(resource: dict[str, Any]) -> None:
    """Raise jsonschema's ValidationError for a resource that Kubernetes would refuse, or prune without a word."""
    import jsonschema

    jsonschema.validate(resource, schemas()[resource["apiVersion"], resource["kind"]])


def _strict(schema: Any) -> Any:
    """Return the schema with unknown keys refused, which Kubernetes drops, and whole numbers allowed as text."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(part) for key, part in schema.items()}
    known = "properties" in schema and isinstance(schema.get("type"), str)
    if known and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string") is True:
        strict |= {"type": ["integer", "string"]}
        strict.pop("anyOf", None)
    return strict
