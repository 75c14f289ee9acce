"""Versions of one model in MLflow: the files they hold, their tags, and the aliases that point at them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

from iar.errors import UserError
from iar.methods.digest import digest_file
from iar.services.linking import tree_digests
from iar.services.tracking import CONTENT_TAG, Tracker

MODEL = "model"


class ModelVersions:
    """The versions of `name`. Raises TemporaryError where the server fails."""

    def __init__(self, tracker: Tracker, name: str) -> None:
        self._tracker = tracker
        self.name = name

    def holding(self, content: str) -> str:
        """Return the version whose files have this digest together. Raises UserError where there is none."""
        with self._tracker.opened() as client:
            found = client.search_model_versions(f"name = '{self.name}' and tags.`{CONTENT_TAG}` = '{content}'")
        ready = [str(version.version) for version in found if version.status == "READY"]
        if not ready:
            raise UserError(
                f"MLflow at {self._tracker.uri}: {self.name} has no version with this run's files ({content[:12]}); "
                "check register.tracking_uri, or run the run file again to register it"
            )
        return ready[0]

    def tags(self, version: str) -> dict[str, str]:
        """Return the tags of a version. Raises UserError where it is gone."""
        return dict(self._version(version).tags)

    def tag(self, version: str, tags: Mapping[str, str]) -> None:
        """Set tags of a version; others stay."""
        with self._tracker.opened() as client:
            for key, value in tags.items():
                client.set_model_version_tag(self.name, version, key, value)

    def alias(self, alias: str) -> str:
        """Return the version an alias points at; "" where the model has no such alias."""
        with self._tracker.opened() as client:
            found = client.search_registered_models(f"name = '{self.name}'")
        return str(found[0].aliases.get(alias, "")) if found else ""

    def point(self, alias: str, version: str) -> None:
        """Let an alias point at a version, wherever it points now."""
        with self._tracker.opened() as client:
            client.set_registered_model_alias(self.name, alias, version)

    def files(self, version: str) -> dict[str, str]:
        """Return relative path -> SHA-256 of every file of a version, each read whole, uploaded ones one at a time."""
        about = self._version(version)
        place = urlsplit(about.source)
        if place.scheme in ("", "file"):
            return tree_digests(Path(unquote(place.path)))
        with self._tracker.opened() as client, TemporaryDirectory(prefix="iar-model-") as aside:
            digests = {}
            for path in _paths(client, about.run_id, MODEL):
                copy = Path(client.download_artifacts(about.run_id, path, aside))
                digests[path.removeprefix(f"{MODEL}/")] = digest_file(copy)
                copy.unlink()
        return digests

    def source(self, version: str) -> str:
        """Return the address of a version's files as MLflow has it. Raises UserError where it is gone."""
        return str(self._version(version).source)

    def _version(self, version: str) -> Any:
        with self._tracker.opened() as client:
            # Asking for a version that is gone fails like a server that is down; a search tells them apart.
            found = client.search_model_versions(f"name = '{self.name}'")
        for one in found:
            if str(one.version) == version:
                return one
        raise UserError(f"MLflow at {self._tracker.uri}: version {version} of {self.name} is gone; promote another")


def _paths(client: Any, run_id: str, folder: str) -> Iterator[str]:
    for item in client.list_artifacts(run_id, folder):
        if item.is_dir:
            yield from _paths(client, run_id, item.path)
        else:
            yield str(item.path)
