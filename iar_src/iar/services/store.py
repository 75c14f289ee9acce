"""Finished artifacts in an object store: what another machine finds by key, and the state folder keeps a copy of.

PLACE/artifacts/<task>/<key>/<SHA-256>        the bytes of a file, under their digest
                             manifest.json    names, sizes and digests of the files; written last and once
                             released.json    names of files that were removed since, as they can be rebuilt
PLACE/trainings/<task>-<key>/                 what a training has there while it is under way

A half upload has no manifest and is never found. Two writers of one key cannot mix their files: each stands under its
digest, and the first manifest is the artifact; who comes second takes it over in place of its own.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from iar.config import RunFile
from iar.errors import IarError, PermanentError, UserError
from iar.services.object_store import Bucket
from iar.services.store_transfer import Report, get_folder, has_manifest, listed_files, put_folder, sha256_of
from iar.services.workspace import (
    KEY_DIGITS,
    MANIFEST,
    STEPS,
    TRAININGS,
    Manifest,
    Workspace,
    damaged,
    parse_manifest,
    put_in_place,
    read_manifest,
    released,
)

ARTIFACTS = "artifacts"
SCHEME = "s3://"


def is_stored(reference: str) -> bool:
    """Return whether a reference between tasks leads to an object store."""
    return reference.startswith(SCHEME)


@dataclass(frozen=True)
class StoredRef:
    """An artifact in a store as a string between tasks: `s3://bucket/prefix/artifacts/task/key@sha256:<digest>`."""

    place: str
    task: str
    key: str
    digest: str

    def __str__(self) -> str:
        return f"{self.place}/{self.folder}@sha256:{self.digest}"

    @property
    def folder(self) -> str:
        """Where in the place its objects are."""
        return _place(self.task, self.key)

    @classmethod
    def parse(cls, text: str) -> "StoredRef":
        """Read a reference. Raises UserError for any other text."""
        path, separator, digest = text.rpartition("@sha256:")
        parts = path.rsplit("/", 3)
        if not (separator and is_stored(path) and len(parts) == 4 and parts[1] == ARTIFACTS and len(digest) == 64):
            raise UserError(
                f"artifact reference {text!r}: expected s3://bucket/prefix/{ARTIFACTS}/task/key@sha256:<64 digits>"
            )
        return cls(parts[0], parts[2], parts[3], digest)


class Store:
    """The artifacts of one place such as s3://bucket/prefix, with the state folder as their cache."""

    def __init__(self, place: str, workspace: Workspace) -> None:
        self.bucket = Bucket(place)
        self.workspace = workspace

    @classmethod
    def of(cls, run_file: RunFile, workspace: Workspace) -> "Store | None":
        """Return the store of a run file; None where artifacts stay on this machine."""
        return cls(run_file.run.store, workspace) if run_file.run.store else None

    def ref(self, task: str, key: str) -> StoredRef:
        """Return the reference of an artifact that is both here and in the store."""
        return StoredRef(self.bucket.place, task, key, self.workspace.ref(task, key).digest)

    def find(self, task: str, key: str, report: Report) -> Manifest | None:
        """Return the artifact of this key, whole and verified in the state folder, the same as in the store.

        One that only the state folder has is uploaded; where both have one and they differ, the store's counts.
        """
        here, there = self.workspace.find(task, key), self._manifest(task, key)
        if there is None:
            # What the store is to have must be whole: the stage makes it again.
            whole = here and not released(self.workspace.artifact(task, key))
            return self.keep(here, report) if here and whole else None
        if here and there == (self.workspace.artifact(task, key) / MANIFEST).read_bytes():
            return here
        return self._fetch(task, key, there, report)

    def keep(self, manifest: Manifest, report: Report) -> Manifest:
        """Upload a finished artifact; return the one that the store has now, which another writer may have made."""
        folder = self.workspace.artifact(manifest.task, manifest.key)
        ours = (folder / MANIFEST).read_bytes()
        place, copies = _place(manifest.task, manifest.key), self._left_by_training(manifest)
        theirs = put_folder(self.bucket, place, folder, manifest.files, ours, report, copies=copies)
        return manifest if theirs == ours else self._fetch(manifest.task, manifest.key, theirs, report)

    def _left_by_training(self, manifest: Manifest) -> dict[str, str]:
        """Return SHA-256 -> name of what the job of a training has uploaded: it need not go up twice."""
        if not any(file.path == STEPS for file in manifest.files):
            return {}
        sizes = {file.sha256: file.size for file in manifest.files}
        left = self.bucket.sizes(f"{TRAININGS}/{manifest.task}-{manifest.key[:KEY_DIGITS]}/")
        return {sha256: name for name, size in left.items() if sizes.get(sha256 := name.rpartition("/")[2]) == size}

    def manifest(self, ref: StoredRef) -> Manifest:
        """Return what a reference leads to, without its files.

        Raises UserError when it is gone from the store, PermanentError when it is not what was referred to.
        """
        here = self.workspace.artifact(ref.task, ref.key)
        return read_manifest(here) if has_manifest(here, ref.digest) else parse_manifest(self._referred(ref).decode())

    def open(self, ref: StoredRef, report: Report) -> Path:
        """Return the local folder of what a reference leads to, whole and verified. Raises as `manifest` does."""
        here = self.workspace.artifact(ref.task, ref.key)
        if not _is_whole(here, ref.digest):
            self._fetch(ref.task, ref.key, self._referred(ref), report)
        return here

    def forget_training(self, task: str, key: str) -> None:
        """Drop what the trainings of an artifact that is in the store have left there."""
        try:
            self.bucket.clear(f"{TRAININGS}/{task}-{key[:KEY_DIGITS]}/")
        except IarError as error:
            print(f"parts of a finished training stay in the store: {error}", file=sys.stderr)

    def _manifest(self, task: str, key: str) -> bytes | None:
        return self.bucket.read(f"{_place(task, key)}/{MANIFEST}")

    def _referred(self, ref: StoredRef) -> bytes:
        raw = self._manifest(ref.task, ref.key)
        if raw is None:
            raise UserError(f"artifact {ref} is gone: run the same run file again to rebuild it")
        if sha256_of(raw) != ref.digest:
            raise PermanentError(f"artifact {ref}: its manifest was changed; delete it from the store to rebuild it")
        return raw

    def _fetch(self, task: str, key: str, raw: bytes, report: Report) -> Manifest:
        """Bring an artifact here; several tasks that want it wait for one of them."""
        manifest = parse_manifest(raw.decode())
        place, final, folder = _place(task, key), self.workspace.artifact(task, key), self.workspace.fetch(task, key)
        if not (manifest.task == task and manifest.key[:KEY_DIGITS] == key[:KEY_DIGITS]):
            raise PermanentError(f"{self.bucket.place}/{place}: holds the manifest of another artifact; delete it")
        with _held(folder.with_name(folder.name + ".lock")):
            if not _is_whole(final, sha256_of(raw)):
                get_folder(self.bucket, place, raw, manifest.files, folder, report)
                put_in_place(folder, final)
        return manifest


def content_ref(place: str, name: str, manifest: bytes) -> str:
    """Return the reference of a folder kept by content: `place/name/<16 digits>@sha256:<digest of its manifest>`."""
    digest = sha256_of(manifest)
    return f"{place}/{name}/{digest[:KEY_DIGITS]}@sha256:{digest}"


def bring(ref: str, below: Path, report: Report) -> Path:
    """Return the local folder of what a reference `s3://...@sha256:...` leads to, whole and verified, below `below`.

    The processes of a machine that want it wait for one of them, and a cut download goes on where it stood. Raises
    UserError for what is no such reference or is gone, PermanentError for other bytes than were referred to.
    """
    uri, separator, digest = ref.rpartition("@sha256:")
    parent, _, name = uri.rpartition("/")
    if not (separator and is_stored(uri) and name and len(digest) == 64):
        raise UserError(f"reference {ref!r}: expected s3://bucket/prefix/folder@sha256:<64 digits>")
    final = below / digest[:KEY_DIGITS]
    part = final.with_name(f"{final.name}.part")
    with _held(final.with_name(f"{final.name}.lock")):
        if not final.is_dir():  # it has this name only when it is whole
            bucket = Bucket(parent)
            raw = bucket.read(f"{name}/{MANIFEST}")
            if raw is None:
                raise UserError(f"{uri} is gone from the store: run the same run file again to rebuild it")
            if sha256_of(raw) != digest:
                raise PermanentError(f"{uri}: its manifest has SHA-256 {sha256_of(raw)[:12]}, not {digest[:12]}")
            get_folder(bucket, name, raw, listed_files(raw), part, report)
            put_in_place(part, final)
    return final


def _place(task: str, key: str) -> str:
    return f"{ARTIFACTS}/{task}/{key[:KEY_DIGITS]}"


def _is_whole(folder: Path, digest: str) -> bool:
    return has_manifest(folder, digest) and not any(damaged(folder, read_manifest(folder), verify=False))


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Wait until no other process of this state folder holds the lock, then hold it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
