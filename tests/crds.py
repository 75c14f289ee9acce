"""Custom resources against the definitions that a cluster would check them with, where those are at hand."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

CRDS = Path(__file__).parents[2] / "shared" / "crds"


def validate_resource(resource: dict[str, Any]) -> None:
    """Raise jsonschema's ValidationError where a resource does not fit its definition, an unknown key included."""
    import jsonschema

    group, _, version = resource["apiVersion"].partition("/")
    jsonschema.validate(resource, schema(group, version, resource["kind"]))


@cache
def schema(group: str, version: str, kind: str) -> dict[str, Any]:
    """Return the schema of one kind, closed where the definition does not keep unknown keys."""
    text = (CRDS / f"{group}_{kind.lower()}s.yaml").read_text(encoding="utf-8")
    # Thousands of lines: the loader in C where there is one.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    (definition,) = (one for one in yaml.load_all(text, loader) if one)
    found = next(one for one in definition["spec"]["versions"] if one["name"] == version)
    closed: dict[str, Any] = close(found["schema"]["openAPIV3Schema"])
    return closed


def close(schema: Any) -> Any:
    """Return a schema in which an object takes only the keys it names: a cluster would drop the others."""
    if not isinstance(schema, dict):
        return schema
    closed = {key: close(value) for key, value in schema.items() if key not in ("properties", "description")}
    if "properties" in schema:
        closed["properties"] = {name: close(value) for name, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    return closed
