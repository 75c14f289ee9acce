"""Files of stored artifacts that are not kept, because they can be rebuilt bit for bit, and what rebuilds them."""

import json
from collections.abc import Iterable
from pathlib import Path

from iar.services.store import ARTIFACTS, Store, StoredRef
from iar.services.store_transfer import Report, released_there, sha256_of
from iar.services.workspace import MANIFEST, RELEASED, parse_manifest


def read_stored(store: Store, ref: StoredRef, path: str) -> str:
    """Return a small text file of an artifact. Raises as `Store.manifest` does, PermanentError where it is gone."""
    (file,) = [one for one in store.manifest(ref).files if one.path == path]
    name = f"{ref.folder}/{file.sha256}"
    raw = store.bucket.read(name)
    if raw is None:
        raise store.bucket.gone(name)
    return raw.decode()


def release_stored(store: Store, ref: StoredRef, paths: Iterable[str]) -> None:
    """Remove files of an artifact from the store, not from the state folder.

    Their names are written down before the first goes, so a kill leaves files that nobody misses, never a missing one
    that nobody knows of.
    """
    going, files = set(paths), store.manifest(ref).files
    # Equal bytes are one object, which a file that stays may need.
    objects = {f"{ref.folder}/{file.sha256}" for file in files if file.path in going}
    objects -= {f"{ref.folder}/{file.sha256}" for file in files if file.path not in going}
    if present := store.bucket.sizes(f"{ref.folder}/").keys() & objects:
        known = released_there(store.bucket, ref.folder)
        if going - known:
            store.bucket.write(f"{ref.folder}/{RELEASED}", json.dumps(sorted(going | known)).encode())
        store.bucket.delete(sorted(present))


def stored_with(store: Store, task: str, content: str, report: Report) -> Path | None:
    """Return the local folder of an artifact of a task with this content, whatever its key; None where there is none.

    Looks at what the store has of this task alone.
    """
    for name in sorted(store.bucket.sizes(f"{ARTIFACTS}/{task}/")):
        folder, _, file = name.rpartition("/")
        raw = store.bucket.read(name) if file == MANIFEST else None
        if raw is not None and parse_manifest(raw.decode()).content == content:
            key = folder.rpartition("/")[2]
            return store.open(StoredRef(store.bucket.place, task, key, sha256_of(raw)), report)
    return None
