"""The restart points of one training in an object store, brought there by a thread while the training goes on.

PLACE/step-00000120/<SHA-256>, manifest.json      as an artifact's files; the manifest is written last

A point is linked aside first, so that the training may drop its own. One is on its way at a time, and only the newest
waits: a slow network costs points, never steps.
"""

import json
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from iar.errors import IarError, PermanentError
from iar.records import from_json, to_json
from iar.services.linking import link_tree
from iar.services.object_store import Bucket
from iar.services.store import get_folder, put_folder
from iar.services.workspace import MANIFEST, STEPS, StoredFile, stored_files


class PointStore:
    """The points below `place` such as s3://bucket/prefix/restart/inject-0123, the newest `keep` of them.

    `folder` is where the training keeps its own, one folder a step, and `log` its steps up to now, which go along.
    """

    def __init__(self, place: str, keep: int, folder: Path, log: Path) -> None:
        self.bucket = Bucket(place)
        self.keep = keep
        self.folder = folder
        self.log = log
        self._aside = folder.with_name(folder.name + "-upload")
        self._changed = threading.Condition()
        self._waiting: Path | None = None
        self._busy = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def restore(self, own: Path | None) -> None:
        """Bring the newest whole point here, with its log, where the training's `own` newest is older or gone.

        Else what an earlier process left on its way there is taken up. A point whose bytes were changed is passed over.
        """
        shutil.rmtree(self._aside, ignore_errors=True)
        for step, raw in self._whole():
            if own is not None and step <= own.name:
                if step < own.name:
                    break
                return
            if self._bring(step, raw):
                return
        if own is not None:
            self.take(own)

    def take(self, point: Path) -> None:
        """Have a whole point uploaded by the thread; one that still waits gives way to it."""
        with self._changed:
            aside = self._aside / point.name
            if aside.exists():  # on its way already
                return
            link_tree(point, aside)
            if self.log.is_file() and not (aside / STEPS).exists():
                shutil.copyfile(self.log, aside / STEPS)
            if self._waiting is not None:
                shutil.rmtree(self._waiting)
            self._waiting = aside
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="restart-points-to-store")
            self._thread.start()

    def wait(self) -> None:
        """Return when what was taken is in the store, or could not be brought there."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None and not self._busy)

    def close(self) -> None:
        """Give up what is still on its way and end the thread; what is in the store stays."""
        self._stop.set()
        with self._changed:
            self._waiting = None
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        shutil.rmtree(self._aside, ignore_errors=True)

    def clear(self) -> None:
        """Drop all points, on their way and in the store: the training is finished."""
        self.close()
        try:
            self._delete(self.bucket.sizes(""))
            for name, upload in self.bucket.unfinished("").items():
                self.bucket.abort(name, upload)
        except IarError as error:
            print(f"restart points stay in the store: {error}", file=sys.stderr)

    def _whole(self) -> Iterator[tuple[str, bytes]]:
        """Yield (step, manifest) of the whole points in the store, the newest first."""
        for step in reversed(_whole_steps(self.bucket.sizes(""))):
            if (raw := self.bucket.read(f"{step}/{MANIFEST}")) is not None:
                yield step, raw

    def _bring(self, step: str, raw: bytes) -> bool:
        part = self.folder / f"{step}.fetched"
        files = tuple(from_json(StoredFile, file) for file in json.loads(raw)["files"])
        try:
            get_folder(self.bucket, step, raw, files, part, lambda done, total, note: None)
        except PermanentError as error:
            print(f"restart point passed over: {error}", file=sys.stderr)
            shutil.rmtree(part, ignore_errors=True)
            return False
        if (part / STEPS).is_file():
            shutil.copyfile(part / STEPS, self.log)
        shutil.rmtree(self.folder / step, ignore_errors=True)
        part.rename(self.folder / step)
        return True

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._stop.is_set())
                if self._stop.is_set():
                    return
                point, self._waiting, self._busy = self._waiting, None, True
            try:
                assert point is not None
                self._upload(point)
            except (IarError, OSError) as error:
                print(f"{error}; the training goes on, and its next restart point is tried again", file=sys.stderr)
            finally:
                shutil.rmtree(str(point), ignore_errors=True)
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _upload(self, point: Path) -> None:
        files = stored_files(point)
        manifest = json.dumps({"files": [to_json(file) for file in files]}, indent=1, sort_keys=True).encode()
        put_folder(self.bucket, point.name, point, files, manifest, lambda done, total, note: None, self._stop)
        if not self._stop.is_set():
            there = self.bucket.sizes("")
            oldest = _whole_steps(there)[-self.keep :][0]
            self._delete(name for name in there if name.partition("/")[0] < oldest)

    def _delete(self, names: Iterable[str]) -> None:
        """Delete objects, manifests first: half a point is never found."""
        names = set(names)
        manifests = {name for name in names if name.endswith(f"/{MANIFEST}")}
        self.bucket.delete(sorted(manifests))
        self.bucket.delete(sorted(names - manifests))


def _whole_steps(names: Iterable[str]) -> list[str]:
    return sorted(name.partition("/")[0] for name in names if name.endswith(f"/{MANIFEST}"))
