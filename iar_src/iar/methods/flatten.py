"""Nested settings and readings as the flat names and texts that a tracking server takes."""

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from iar.methods.digest import canonical_json


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values as `section.key` -> text; what is neither text nor a mapping is its JSON."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[tracking_key(prefix + name)] = value if isinstance(value, str) else canonical_json(value)
    return flat


def tracking_key(name: str) -> str:
    """Return `name` with every character replaced that MLflow refuses in the name of a param or metric."""
    return re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Tell whether a value can be a metric: a number, and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)
