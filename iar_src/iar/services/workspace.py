"""The state folder: finished artifacts with their manifests, work in progress, and one folder a run.

STATE/artifacts/<task>/<key>/    finished; manifest.json was written last; released.json names files that were removed
                                 since, because they can be rebuilt bit for bit
STATE/work/<task>-<key>/         in progress; survives a kill, the same key continues there
STATE/fetch/<task>-<key>/        on its way here from a store; survives a kill too
STATE/tries/                     notes of tries that run, or ended without a result and are not in the registry yet
STATE/runs/<run id>/             run.json, run.yaml, progress.jsonl, error.json, log.txt, tasks/<task>.json
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from iar.config import PlatformSection, RunFile
from iar.errors import PermanentError, UserError
from iar.methods.digest import digest_file, digest_json
from iar.records import Outcome, from_json, to_json, write_json
from iar.services.progress import Progress
from iar.services.surroundings import Surroundings

if TYPE_CHECKING:
    from iar.services.registry import Registry

MANIFEST, RELEASED = "manifest.json", "released.json"
KEY_DIGITS = 16
RUN_YAML = "run.yaml"
"""In the folder of a run on this machine: the whole of its run file, overrides and defaults included."""
TRAININGS = "trainings"
STEPS = "steps.jsonl"
"""A training's log: losses, tokens and seconds of each step, so equal trainings differ in it."""
CHECKS, HITS = "decontamination.json", "contamination.jsonl"
"""What data was checked against: other evaluations leave other files, and the data the same."""
WITHHELD = "withheld.json"
"""Which retracted files were met: the data without them is the same whether they were there or not."""
LINEAGE = "lineage.jsonl"
"""Registry entries of an artifact that are too many for its manifest; they say again what its other files say."""
REGRESSIONS = "non-regression.json"
"""The pick beside the model before it, which is another one each time."""
LOOKS = "looks.json"
"""How often each evaluation set had been looked at, of which the scores are independent."""
ORACLE = "oracle"
"""A folder: what a judge outside a training made of its epochs, of which nothing goes into the weights."""
ORACLE_RECORD = f"{ORACLE}/oracle.json"
NO_CONTENT = frozenset((STEPS, CHECKS, HITS, WITHHELD, LINEAGE, LOOKS, REGRESSIONS, ORACLE))


@dataclass(frozen=True)
class StoredFile:
    """A file of an artifact: path relative to its folder, bytes, SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a finished artifact is, from which key it was made and what the stage reported.

    `started` is Unix time, `seconds` what the last try took; `made_in` is empty where an older version made it.
    """

    task: str
    stage: str
    key: str
    key_parts: dict[str, Any]
    code: str
    started: float
    seconds: float
    files: tuple[StoredFile, ...]
    outcome: Outcome
    made_in: Surroundings = field(default_factory=Surroundings)

    @property
    def content(self) -> str:
        """SHA-256 of names and bytes only: equal results have equal content, whenever they were made and checked."""
        counted = [file for file in self.files if file.path.partition("/")[0] not in NO_CONTENT]
        return digest_json({file.path: file.sha256 for file in counted})


@dataclass(frozen=True)
class Ref:
    """A finished artifact as a string between tasks: `file:///folder@sha256:<digest of its manifest>`."""

    path: Path
    digest: str

    def __str__(self) -> str:
        return f"file://{quote(str(self.path))}@sha256:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> "Ref":
        """Read a reference. Raises UserError for any other text."""
        place, separator, digest = text.rpartition("@sha256:")
        path = Path(unquote(place.removeprefix("file://")))
        if not (separator and place.startswith("file:///") and len(digest) == 64):
            raise UserError(f"artifact reference {text!r}: expected file:///folder@sha256:<64 digits>")
        return cls(path, digest)

    def open(self, verify: bool = False) -> Manifest:
        """Return the manifest, checked against the digest; with `verify` every file's bytes too.

        Raises UserError when the artifact is gone, PermanentError when it was changed.
        """
        if not (self.path / MANIFEST).is_file():
            raise UserError(f"artifact {self.path} is gone: run the same run file again to rebuild it")
        if digest_file(self.path / MANIFEST) != self.digest:
            raise PermanentError(f"artifact {self.path}: its manifest was changed; delete the folder to rebuild it")
        manifest = read_manifest(self.path)
        for stored in damaged(self.path, manifest, verify):
            raise PermanentError(f"artifact {self.path}: {stored.path} was changed; delete the folder to rebuild it")
        return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a finished artifact."""
    return parse_manifest((folder / MANIFEST).read_text(encoding="utf-8"))


def parse_manifest(text: str) -> Manifest:
    """Return the manifest that a text holds."""
    data = json.loads(text)
    data["outcome"] = from_json(Outcome, data["outcome"])
    data["made_in"] = from_json(Surroundings, data.get("made_in", {}))
    return from_json(Manifest, data)


def released(folder: Path) -> frozenset[str]:
    """Return the paths in an artifact that were removed on purpose: what they held can be rebuilt bit for bit."""
    path = folder / RELEASED
    return frozenset(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else frozenset()


def released_bytes(state: Path) -> int:
    """Return how many bytes were released in all artifacts of a state folder."""
    folders = [path.parent for path in (state / "artifacts").glob(f"*/*/{RELEASED}")]
    return sum(file.size for folder in folders for file in read_manifest(folder).files if file.path in released(folder))


def damaged(folder: Path, manifest: Manifest, verify: bool) -> Iterator[StoredFile]:
    """Yield the files whose size, or with `verify` whose bytes, are not what the manifest says.

    Released files are not looked at: who reads them has them rebuilt.
    """
    absent = released(folder)
    for stored in manifest.files:
        if stored.path in absent:
            continue
        path = folder / stored.path
        same_size = path.is_file() and path.stat().st_size == stored.size
        if not same_size or (verify and digest_file(path) != stored.sha256):
            yield stored


@dataclass(frozen=True)
class Workspace:
    """The folders below one state folder."""

    state: Path

    @classmethod
    def of(cls, run_file: RunFile) -> "Workspace":
        """Return the workspace of a run file; the environment variable IAR_STATE goes first."""
        return cls(Path(os.environ.get("IAR_STATE") or run_file.run.state).resolve())

    def registry_url(self, run_file: RunFile) -> str:
        """Return the URL of the provenance registry of a run file, of the state folder where it names none."""
        return run_file.register.registry_url or f"sqlite:///{self.state / 'registry.sqlite'}"

    def artifact(self, task: str, key: str) -> Path:
        """Return the folder of a finished artifact."""
        return self.state / "artifacts" / task / key[:KEY_DIGITS]

    def work(self, task: str, key: str) -> Path:
        """Return the folder where this artifact is being made."""
        return self.state / "work" / f"{task}-{key[:KEY_DIGITS]}"

    def fetch(self, task: str, key: str) -> Path:
        """Return the folder into which this artifact is brought from a store."""
        return self.state / "fetch" / f"{task}-{key[:KEY_DIGITS]}"

    def run(self, run_id: str) -> Path:
        """Return the folder of a run."""
        return self.state / "runs" / run_id

    def find(self, task: str, key: str, verify: bool = False) -> Manifest | None:
        """Return the manifest of a finished, undamaged artifact of this key."""
        folder = self.artifact(task, key)
        if not (folder / MANIFEST).is_file():
            return None
        manifest = read_manifest(folder)
        whole = manifest.key == key and not any(damaged(folder, manifest, verify))
        return manifest if whole else None

    def holding(self, content: str) -> Path | None:
        """Return the folder of an undamaged artifact with this content, whatever its key."""
        for path in sorted((self.state / "artifacts").glob(f"*/*/{MANIFEST}")):
            manifest = read_manifest(path.parent)
            if manifest.content == content and not any(damaged(path.parent, manifest, verify=False)):
                return path.parent
        return None

    def ref(self, task: str, key: str) -> Ref:
        """Return the reference of a finished artifact."""
        folder = self.artifact(task, key)
        return Ref(folder, digest_file(folder / MANIFEST))

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest last, then move the work folder to its final place in one step."""
        work = self.work(manifest.task, manifest.key)
        write_json(work / MANIFEST, to_json(manifest))
        put_in_place(work, self.artifact(manifest.task, manifest.key))


def put_in_place(folder: Path, final: Path) -> None:
    """Make a complete folder the artifact of its key, in one step."""
    sync(folder)
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists():
        shutil.rmtree(final)
    folder.rename(final)
    sync(final.parent)


def stored_files(folder: Path) -> tuple[StoredFile, ...]:
    """Force every file of a folder to disk and describe it, in the order of names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    for path in files:
        sync(path)
    return tuple(StoredFile(str(path.relative_to(folder)), path.stat().st_size, digest_file(path)) for path in files)


def sync(path: Path) -> None:
    """Force a file's bytes, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Context:
    """What a stage sees of the world. `stage` is the readable task name; shards count from 1; `recipe` is "" where
    the stage does one thing only. `platform` says where things run and `store` where they are kept too, on which no
    result may depend."""

    run_id: str
    stage: str
    progress: Progress
    state: Path
    seed: int
    shard: int = 1
    shards: int = 1
    registry_url: str = ""
    recipe: str = ""
    platform: PlatformSection = field(default_factory=PlatformSection)
    store: str = ""

    def training_place(self, out: Path) -> str:
        """Return where in the store a training into the work folder `out` has what it keeps there; "" without one."""
        if not self.store:
            return ""
        return f"{self.store}/{TRAININGS}/{out.resolve().relative_to((self.state / 'work').resolve())}"

    def registry(self) -> "Registry":
        """Open the provenance registry of this run."""
        from iar.services.registry import Registry

        return Registry.open(self._registry_url)

    def retracted(self) -> frozenset[str]:
        """Return the SHA-256 of every file that may not be used."""
        from iar.services.withheld import retracted_now

        return retracted_now(self._registry_url)

    @property
    def _registry_url(self) -> str:
        return self.registry_url or f"sqlite:///{self.state / 'registry.sqlite'}"

    @classmethod
    def for_tests(cls, state: Path, seed: int = 17, shard: int = 1, shards: int = 1, recipe: str = "") -> "Context":
        """Return a context that reports to nobody and keeps its registry in `state`."""
        return cls("test-0000000000", "test", Progress(None, "test"), state, seed, shard, shards, "", recipe)
