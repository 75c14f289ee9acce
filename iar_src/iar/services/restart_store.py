"""The restart points of one training in an object store, brought there by a thread while the training goes on.

PLACE/step-00000120/<SHA-256>, manifest-0-of-1.json      as an artifact's files; the manifest is written last

Of a training on several nodes without a common folder each node brings the shares of its ranks, with a manifest of its
own; the point is whole when all are there.

A point is linked aside first, so that the training may drop its own. One is on its way at a time, and only the newest
waits: a slow network costs points, never steps.
"""

import re
import shutil
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from iar.errors import IarError, PermanentError
from iar.services.linking import link_tree
from iar.services.object_store import Bucket
from iar.services.store_transfer import file_list, get_folder, listed_files, put_folder
from iar.services.workspace import STEPS, stored_files

NODE = re.compile(r"(step-\d+)/manifest-(\d+)-of-(\d+)\.json")
SHARES = "state-*.safetensors"


class PointStore:
    """The points below `place` such as s3://bucket/prefix/trainings/inject-0123/restart, the newest `keep` of them.

    `folder` is where the training keeps its own, one folder a step, and `log` its steps up to now, which go along. It
    is that of node `node` of `nodes`; the first brings what is not a share too.
    """

    def __init__(self, place: str, keep: int, folder: Path, log: Path, node: int = 0, nodes: int = 1) -> None:
        self.bucket = Bucket(place)
        self.keep = keep
        self.folder = folder
        self.log = log
        self._node = node
        self._name = f"manifest-{node}-of-{nodes}.json"
        self._aside = folder.with_name(folder.name + "-upload")
        self._changed = threading.Condition()
        self._waiting: Path | None = None
        self._busy = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether something is still on its way to the store."""
        with self._changed:
            return self._busy or self._waiting is not None

    def steps(self) -> list[str]:
        """Return the names of the whole points in the store, the newest first."""
        return _whole_steps(self.bucket.sizes(""))[::-1]

    def restore(self, own: Path | None) -> None:
        """Bring the newest whole point here, with its log, where the training's `own` newest is older or gone.

        Else what an earlier process left on its way there is taken up. A point whose bytes were changed is passed over.
        """
        shutil.rmtree(self._aside, ignore_errors=True)
        for step in self.steps():
            if own is not None and step <= own.name:
                if step < own.name:
                    break
                return
            if self.bring(step):
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
            if self._node:
                for path in set(aside.iterdir()) - set(aside.glob(SHARES)):
                    path.unlink()
            elif self.log.is_file() and not (aside / STEPS).exists():
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

    def bring(self, step: str) -> bool:
        """Bring a whole point here, all nodes' shares; return whether its bytes are those of its manifests."""
        part = self.folder / f"{step}.fetched"
        names = sorted(name for name in self.bucket.sizes(f"{step}/") if NODE.fullmatch(name))
        manifests = [raw for name in names if (raw := self.bucket.read(name)) is not None]
        files = tuple(file for raw in manifests for file in listed_files(raw))
        try:
            get_folder(self.bucket, step, b"".join(manifests), files, part, lambda done, total, note: None)
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
        silent = lambda done, total, note: None  # noqa: E731
        put_folder(self.bucket, point.name, point, files, file_list(files), silent, self._stop, self._name)
        there = self.bucket.sizes("")
        if not self._stop.is_set() and (kept := _whole_steps(there)[-self.keep :]):
            self._delete(name for name in there if name.partition("/")[0] < kept[0])

    def _delete(self, names: Iterable[str]) -> None:
        """Delete objects, manifests first: half a point is never found."""
        names = set(names)
        manifests = {name for name in names if NODE.fullmatch(name)}
        self.bucket.delete(sorted(manifests))
        self.bucket.delete(sorted(names - manifests))


def _whole_steps(names: Iterable[str]) -> list[str]:
    """Return the points of which every node's manifest is there, the oldest first."""
    found: dict[tuple[str, int], int] = {}
    for name in names:
        if node := NODE.fullmatch(name):
            of = node[1], int(node[3])
            found[of] = found.get(of, 0) + 1
    return sorted({step for (step, nodes), count in found.items() if count == nodes})
