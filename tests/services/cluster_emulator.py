"""kmock's Kubernetes emulator in a thread of its own, for code that calls the API synchronously."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp.web
import attrs
import yaml
from kmock import KubernetesEmulator, Server

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@attrs.define(kw_only=True)
class Cluster(KubernetesEmulator):
    """An emulator that also answers access reviews: all is allowed but what `denied` names as "verb resource"; and
    that forbids reading the paths in `closed` and deleting those in `kept`."""

    denied: set[str] = attrs.field(factory=set)
    closed: set[str] = attrs.field(factory=set)
    kept: set[str] = attrs.field(factory=set)
    reviewed: list[dict[str, Any]] = attrs.field(factory=list)

    async def _handle(self, request: Any) -> aiohttp.web.StreamResponse:
        if request.url.path == REVIEWS:
            asked = request.data["spec"]["resourceAttributes"]
            self.reviewed.append(asked)
            part = f"/{asked['subresource']}" if asked["subresource"] else ""
            allowed = f"{asked['verb']} {asked['resource']}{part}" not in self.denied
            return aiohttp.web.json_response({"status": {"allowed": allowed}}, status=201)
        if request.url.path in (self.kept if request.method.value == "DELETE" else self.closed):
            return aiohttp.web.json_response({"kind": "Status", "code": 403}, status=403)
        return await super()._handle(request)


@contextmanager
def emulated(kubeconfig: Path) -> Iterator[Cluster]:
    """Yield a running cluster, and write the file that leads to it."""
    loop, ready, ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    found: list[Cluster] = []

    async def serve() -> None:
        async with Cluster() as cluster, Server(cluster) as server:
            kubeconfig.write_text(yaml.safe_dump(config(str(server.url))))
            found.append(cluster)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        loop.close()


def config(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url.rstrip("/")}}],
        "users": [{"name": "test", "user": {"token": "t"}}],
    }
