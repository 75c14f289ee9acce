"""An emulated Kubernetes API in a thread, a clock that tests move, and a launcher's surroundings."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import kmock
from kubernetes.client import ApiClient, Configuration

from iar.config import PlatformSection, PoolSection
from iar.errors import IarError
from iar.methods.job_spec import JobSpec, TaskSettings, training_job
from iar.services.jobs import Cluster, Pace
from iar.services.launcher import Training

NAMESPACE = "iar"
MINUTE, HOUR = 60.0, 3600.0
PODS = "v1/pods"
JOBS = {"pytorchjob": "kubeflow.org/v1/pytorchjobs", "trainjob": "trainer.kubeflow.org/v1alpha1/trainjobs"}


@contextmanager
def emulator() -> Iterator[kmock.KubernetesEmulator]:
    """Serve an empty cluster that knows jobs and pods, until the block ends."""
    ready, made = threading.Event(), []

    async def serve() -> None:
        async with kmock.KubernetesEmulator() as api, kmock.Server(api):
            for resource in (PODS, *JOBS.values()):
                api.resources[resource] = {}
            stop = asyncio.Event()
            made.extend([api, str(api.url), stop, asyncio.get_running_loop()])
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    api, _, stop, loop = made
    yield api
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)


@contextmanager
def damaging(
    api: kmock.KubernetesEmulator, damage: Callable[[bytes], bytes], length: int = 0
) -> Iterator[tuple[str, set[str]]]:
    """Serve the emulator's answers, the first success of each verb and path damaged; yield URL and what was damaged.

    With `length` an answer announces that many bytes more than it sends. A watch sees nothing.
    """
    damaged: set[str] = set()
    base = str(api.url).rstrip("/")

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kept = {name: value for name, value in self.headers.items() if name.lower() in ("content-type", "accept")}
            status, content, missing = 200, b"", 0
            if "watch=true" not in self.path:
                reply = httpx.request(self.command, f"{base}{self.path}", content=body, headers=kept, timeout=30)
                status, content = reply.status_code, reply.content
                what = f"{self.command} {self.path.partition('?')[0]}"
                if reply.is_success and what not in damaged:
                    damaged.add(what)
                    content, missing = damage(content), length
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content) + missing))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", damaged
    server.shutdown()
    server.server_close()


@dataclass
class Clock:
    """Seconds that pass only when somebody sleeps or a test says so."""

    time: float = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class World:
    """One training, its launcher's cluster, and what a test lets happen at each look of the launcher."""

    api: kmock.KubernetesEmulator
    pool: PoolSection = field(default_factory=PoolSection)
    clock: Clock = field(default_factory=Clock)
    script: Callable[["World"], None] = lambda world: None
    result: bool = False
    failure: IarError | None = None
    prepared: int = 0
    looks: int = 0

    @property
    def spec(self) -> JobSpec:
        platform = PlatformSection(backend="kubeflow", processes=2, pool=self.pool)
        return training_job("/state/work/inject-0123456789abcdef", ["python", "-m", "x"], platform, TaskSettings())

    def cluster(self, watch_seconds: float = 0.03) -> Cluster:
        settings = Configuration(host=str(self.api.url).rstrip("/"))
        settings.retries = False
        pace = Pace(watch_seconds, 900.0, self.clock.now, self.clock.sleep)
        return Cluster(ApiClient(settings), NAMESPACE, self.spec.kind, pace)

    def training(self) -> Training:
        return Training(self._prepare, lambda: self.result, lambda: self.failure, self._look)

    def _prepare(self) -> None:
        self.prepared += 1

    def _look(self) -> None:
        self.looks += 1
        assert self.looks < 2_000, "the launcher looks for ever"
        self.script(self)

    @property
    def key(self) -> tuple[str, str, str]:
        return JOBS[self.pool.job], NAMESPACE, self.spec.name

    def job(self) -> Any:
        """Return the job in the cluster, None where there is none."""
        found = self.api.objects[self.key] if self.key in self._keys() else None
        return None if found is None or found.deleted else found

    def put_job(self, *conditions: str, **about: Any) -> None:
        """Put a job of this training there, as another launcher would have."""
        manifest = self.spec.manifest()
        manifest["metadata"] |= {"namespace": NAMESPACE, "uid": "before"} | about
        manifest["status"] = {"conditions": [condition(one) for one in conditions]}
        self.api.objects[self.key] = manifest

    def becomes(self, *conditions: str, reason: str = "") -> None:
        """Let the job's operator report conditions that hold."""
        self.api.objects[self.key].patch({"status": {"conditions": [condition(one, reason) for one in conditions]}})

    def put_pod(self, index: int = 0, exit_code: int | None = None, why: str = "", reason: str = "") -> str:
        """Put a pod of the job there; with an exit code its training has ended, `why` said by the container."""
        name = f"{self.spec.name}-master-{index}"
        ended = {"state": {"terminated": {"exitCode": exit_code, "reason": why}}}
        status = {"reason": reason, "containerStatuses": [] if exit_code is None else [ended]}
        self.api.objects[PODS, NAMESPACE, name] = {"metadata": {"name": name, "namespace": NAMESPACE}, "status": status}
        return name

    def logs(self, text: bytes) -> None:
        """Let every pod have written a text, each line after its time."""
        self.api[lambda request: request.url.path.endswith("/log")] << (lambda: text)

    def created(self) -> int:
        """Return how often a job was asked to be created."""
        return len([one for one in list(self.api) if one.method.value == "POST"])

    def _keys(self) -> set[tuple[str, str | None, str]]:
        return {(f"{one.group}/{one.version}/{one.plural}", space, name) for one, space, name in self.api.objects}


def condition(name: str, reason: str = "") -> dict[str, str]:
    return {"type": name, "status": "True", "reason": reason or name, "message": f"the job is {name}"}
