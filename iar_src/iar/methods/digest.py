"""Canonical JSON and SHA-256 digests: what identifies every record, file and stage."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Return the one JSON text of `value`: sorted keys, no spaces, UTF-8 kept, NaN refused."""
    return _CANONICAL.encode(value)


def digest_text(text: str) -> str:
    """Return the lower-case hexadecimal SHA-256 of `text` in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_bytes(data: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of `value`."""
    return digest_text(canonical_json(value))


def digest_list(values: Iterable[Any]) -> str:
    """Return what `digest_json` does of a list, whose values are gone through one by one."""
    found = hashlib.sha256(b"[")
    for number, value in enumerate(values):
        found.update(b"," * (number > 0) + canonical_json(value).encode())
    found.update(b"]")
    return found.hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
