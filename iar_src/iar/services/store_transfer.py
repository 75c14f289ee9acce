"""Folders on their way to an object store and back, file by file under their digests, the manifest last."""

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from iar.errors import PermanentError, TemporaryError
from iar.methods.digest import digest_file
from iar.records import from_json, to_json, write_json
from iar.services.object_store import PART_BYTES, THREADS, Bucket
from iar.services.workspace import MANIFEST, RELEASED, StoredFile, sync

Report = Callable[[float, float, str], None]


def put_folder(
    bucket: Bucket,
    place: str,
    folder: Path,
    files: Sequence[StoredFile],
    manifest: bytes,
    report: Report,
    stop: threading.Event | None = None,
    name: str = MANIFEST,
    copies: Mapping[str, str] | None = None,
) -> bytes:
    """Upload the files of a folder that the store lacks, then its manifest; return the manifest that the store has.

    What an earlier, cut upload has finished is not repeated. Once `stop` is set no manifest is written. `name` is the
    manifest's, where a place has several. `copies`: by SHA-256, objects of the bucket with these bytes, to be copied
    within it.
    """
    stop = stop or threading.Event()
    objects = {f"{place}/{file.sha256}": file for file in files}  # equal bytes are one object
    there = bucket.sizes(f"{place}/")
    missing = {key: file for key, file in objects.items() if there.get(key) != file.size}
    for key, source in [(key, source) for key, file in missing.items() if (source := (copies or {}).get(file.sha256))]:
        if not stop.is_set() and bucket.copy(source, key):
            del missing[key]
    large = {key: file for key, file in missing.items() if file.size > PART_BYTES}
    begun = bucket.unfinished(f"{place}/") if large else {}
    done = len(objects) - len(missing)

    def send(key: str) -> None:
        if not stop.is_set():
            bucket.upload(folder / missing[key].path, key)

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(send, [key for key in missing if key not in large]):
            report(done := done + 1, len(objects), "to the store")
        for key, file in large.items():
            bucket.upload_parts(folder / file.path, key, begun.get(key, ""), pool, stop)
            report(done := done + 1, len(objects), "to the store")
    if stop.is_set() or bucket.create(f"{place}/{name}", manifest):
        return manifest
    theirs = bucket.read(f"{place}/{name}")
    if theirs is None:
        raise TemporaryError(f"{bucket.place}/{place}: another writer was at it; run the same command again")
    return theirs


def get_folder(
    bucket: Bucket, place: str, manifest: bytes, files: Sequence[StoredFile], folder: Path, report: Report
) -> None:
    """Download files into a folder, each checked against its digest before it appears under its name.

    What an earlier, cut download of the same manifest has finished is not repeated; what was released is left out, and
    `released.json` says so here, too. Raises PermanentError for a file that is not what the manifest says, or that
    would lie outside the folder.
    """
    for file in files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or file.path == MANIFEST:
            raise PermanentError(f"{bucket.place}/{place}: its manifest names {file.path!r}, which no artifact has")
    if not has_manifest(folder, sha256_of(manifest)):  # what is there belongs to another one
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / MANIFEST).write_bytes(manifest)
        sync(folder / MANIFEST)
    missing = [file for file in files if not _there(folder / file.path, file.size)]
    done = len(files) - len(missing)

    def bring(file: StoredFile) -> str:
        """Return the file's path where it was released, else ""."""
        name = f"{place}/{file.sha256}"
        if bucket.download(name, folder / file.path, file.size, file.sha256):
            return ""
        if file.path not in released_there(bucket, place):
            raise bucket.gone(name)
        return file.path

    left_out = []
    with ThreadPoolExecutor(THREADS) as pool:
        for absent in pool.map(bring, missing):
            left_out += [absent] if absent else []
            report(done := done + 1, len(files), "from the store")
    if left_out:
        write_json(folder / RELEASED, sorted(left_out))


def file_list(files: Sequence[StoredFile]) -> bytes:
    """Return the manifest of a folder that is no artifact."""
    return json.dumps({"files": [to_json(file) for file in files]}, indent=1, sort_keys=True).encode()


def listed_files(manifest: bytes) -> tuple[StoredFile, ...]:
    """Return the files that a manifest lists, an artifact's or `file_list`'s."""
    return tuple(from_json(StoredFile, file) for file in json.loads(manifest)["files"])


def released_there(bucket: Bucket, place: str) -> frozenset[str]:
    """Return the paths in a stored artifact that were removed on purpose."""
    return frozenset(json.loads(bucket.read(f"{place}/{RELEASED}") or b"[]"))


def sha256_of(raw: bytes) -> str:
    """Return the digest of bytes."""
    return hashlib.sha256(raw).hexdigest()


def has_manifest(folder: Path, digest: str) -> bool:
    """Return whether a folder has the manifest of this SHA-256."""
    return (folder / MANIFEST).is_file() and digest_file(folder / MANIFEST) == digest


def _there(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
