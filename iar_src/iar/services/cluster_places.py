"""What a run file names that no pod of a cluster reaches: files beside this command, and servers of this machine."""

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from iar.config import Endpoint, RunFile
from iar.methods.explain import redact
from iar.methods.job_spec import STATE
from iar.services.sources import is_hub_id, is_remote

DOCUMENTS = "documents.path"
FILES = (".json", ".jsonl", ".yaml")
IN_IMAGES = "examples"  # the one folder in the working directory of our images


def out_of_reach(run_file: RunFile) -> Iterator[str]:
    """Yield a line a place that a pod does not find: its key, its value and the fix."""
    for key, place in _files(run_file):
        if not _in_images(place):
            yield (
                f"{key}: {place} is relative, and of such places a pod has only {IN_IMAGES}/, which the images carry; "
                "write its absolute path on the state volume, such as /state/documents"
            )
    if not run_file.platform.pool.state_claim:
        yield from _on_no_volume(run_file)
    for key, url in _servers(run_file):
        if _is_here(url):
            yield (
                f"{key}: {redact(url)} is the machine that asks, in a pod the pod itself; name the server as the "
                "cluster knows it, such as http://teacher:8000"
            )


def _on_no_volume(run_file: RunFile) -> Iterator[str]:
    """Yield a line a place on the state volume, where tasks have none."""
    for key, place in _places(run_file).items():
        if Path(place).is_relative_to(STATE):
            elsewhere = "name an s3:// prefix" if key == DOCUMENTS else "put it into an image of your own"
            yield (
                f"{key}: {place} is on the state volume, and platform.pool.state_claim names none; {elsewhere}, name "
                "it by its id on the hub, or name a claim"
            )
    for key in ("registry_url", "tracking_uri"):
        if not getattr(run_file.register, key):
            yield (
                f"register.{key}: empty is a file on the state volume, and platform.pool.state_claim names none; name "
                "a server, or a claim"
            )


def _files(run_file: RunFile) -> Iterator[tuple[str, str]]:
    """Yield key and value of every relative path that is no name and no id."""
    for key, place in _places(run_file).items():
        path = Path(place)
        named = (
            len(path.parts) <= 2
            and path.suffix not in (".json", ".jsonl", ".yaml")
            and not place.startswith((".", "~"))
        )
        if key == DOCUMENTS:
            named = is_remote(place) or is_hub_id(place)
        if not path.is_absolute() and not named:
            yield key, place


def _places(run_file: RunFile) -> dict[str, str]:
    """Return what may name a file or folder, by key."""
    settings, baselines = run_file.evaluate, run_file.baselines
    return {
        DOCUMENTS: run_file.documents.path,
        "model.source": run_file.model.source,
        "evaluate.ifeval": settings.ifeval,
        "evaluate.mmlu": settings.mmlu,
        "evaluate.msbench": settings.msbench,
        "baselines.replay_data": baselines.replay_data,
        "baselines.cpt_model": baselines.cpt_model,
        **({"diagnose.unseen": unseen} if (unseen := run_file.diagnose.unseen) else {}),
        **{f"evaluate.suites[{number}]": place for number, place in enumerate(settings.suites)},
        **{f"qa_build.evals[{number}]": place for number, place in enumerate(run_file.qa_build.evals)},
    }


def _in_images(place: str) -> bool:
    parts = Path(place).parts
    return parts[:1] == (IN_IMAGES,) and ".." not in parts


def _servers(run_file: RunFile) -> Iterator[tuple[str, str]]:
    judges: list[tuple[str, object]] = [
        (f"evaluate.judges[{number}]", judge) for number, judge in enumerate(run_file.evaluate.judges)
    ]
    judges.append(("oracle.judge", run_file.oracle.judge))
    others = (("qa_build.teacher", run_file.qa_build.teacher), ("evaluate.engine", run_file.evaluate.engine))
    for key, server in (*others, *judges):
        if isinstance(server, Endpoint):
            yield f"{key}.base_url", server.base_url
            yield from ((f"{key}.replicas", replica) for replica in server.replicas)
    yield "register.tracking_uri", run_file.register.tracking_uri
    yield "register.registry_url", run_file.register.registry_url


def _is_here(address: str) -> bool:
    url = urlsplit(address)
    host = (url.hostname or "").rstrip(".")
    if not host:
        # A PostgreSQL without a host is the one behind a socket of this machine.
        return url.scheme.startswith("postgresql") and "host" not in parse_qs(url.query)
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        number = ip_address(host)
    except ValueError:
        return False
    return number.is_loopback or number.is_unspecified
