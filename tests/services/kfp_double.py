"""An HTTP server that answers like Kubeflow Pipelines, its routes, queries and bodies those of KFP's own API client."""

import inspect
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import kfp_server_api as api

CLIENT = api.ApiClient()
SERVICES = (
    api.ExperimentServiceApi,
    api.HealthzServiceApi,
    api.PipelineServiceApi,
    api.PipelineUploadServiceApi,
    api.RunServiceApi,
)
BODIES = {
    "experiment_service_create_experiment": "V2beta1Experiment",
    "pipeline_service_create_pipeline": "V2beta1Pipeline",
    "run_service_create_run": "V2beta1Run",
}
EQUALS, CONTAINS = 1, 9


class Route(NamedTuple):
    """One operation of the API: how it is called, and which query parameters it knows."""

    verb: str
    path: re.Pattern[str]
    operation: str
    queries: frozenset[str]


def routes() -> Iterator[Route]:
    for service in SERVICES:
        for name, function in vars(service).items():
            if name.endswith("_with_http_info"):
                source = inspect.getsource(function)
                found = re.search(r"'(/apis/[^']+)', '([A-Z]+)'", source)
                assert found
                path = re.sub(r"\{([\w.]+)\}", lambda match: f"(?P<{match[1].replace('.', '_')}>[^/:]+)", found[1])
                queries = frozenset(re.findall(r"query_params.append\(\('([^']+)'", source))
                yield Route(found[2], re.compile(path), name.removesuffix("_with_http_info"), queries)


ROUTES = list(routes())


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class KfpDouble:
    """The server's state. `before` is called with each operation's name and may raise Refused; `tokens` are accepted,
    None = any; a page holds at most `page` items; `about` is what it tells of itself; `raw`, a content type and a body,
    is answered to every call; runs get their ids from `new_id`, and start `seconds` after each other."""

    def __init__(self) -> None:
        self.pipelines: list[Any] = []
        self.versions: list[Any] = []
        self.experiments: list[Any] = []
        self.runs: list[Any] = []
        self.calls: list[str] = []
        self.tokens: set[str] | None = None
        self.before: Callable[[str], None] = lambda operation: None
        self.page = 100
        self.about: dict[str, Any] = {"multi_user": False, "frontendTagName": "2.17.3"}
        self.raw: tuple[str, bytes] | None = None
        self.new_id: Callable[[], str] = lambda: str(uuid.uuid4())
        self.seconds = 1
        self.url = ""

    def names(self) -> list[str]:
        return [run.display_name for run in self.runs]

    def add_pipeline(self, name: str) -> str:
        body = api.V2beta1Pipeline(display_name=name, name=name)
        return str(self.pipeline_service_create_pipeline(body=body).pipeline_id)

    def add_version(self, pipeline_id: str, name: str) -> str:
        return str(self.upload_pipeline_version(pipelineid=pipeline_id, name=name).pipeline_version_id)

    def add_run(self, name: str, experiment: str = "iar", state: str = "RUNNING", version_id: str = "") -> Any:
        found = [one for one in self.experiments if one.display_name == experiment]
        made = found or [self.experiment_service_create_experiment(body=api.V2beta1Experiment(display_name=experiment))]
        reference = api.V2beta1PipelineVersionReference(pipeline_id="p", pipeline_version_id=version_id)
        run = api.V2beta1Run(
            display_name=name, experiment_id=made[0].experiment_id, state=state, run_id=self.new_id(),
            created_at=self._now(),
            pipeline_version_reference=reference,
        )  # fmt: skip
        self.runs.append(run)
        return run

    # Operations, each under the name of KFP's client.

    def healthz_service_get_healthz(self) -> Any:
        return self.about

    def pipeline_service_list_pipelines(self, **query: str) -> Any:
        found, token = self._page(self.pipelines, query)
        return api.V2beta1ListPipelinesResponse(pipelines=found, next_page_token=token)

    def pipeline_service_create_pipeline(self, body: Any) -> Any:
        if any(one.display_name == body.display_name for one in self.pipelines):
            raise Refused(409, f"pipeline {body.display_name} already exists")
        body.pipeline_id = str(uuid.uuid4())
        self.pipelines.append(body)
        return body

    def pipeline_service_list_pipeline_versions(self, pipeline_id: str, **query: str) -> Any:
        found, token = self._page([one for one in self.versions if one.pipeline_id == pipeline_id], query)
        return api.V2beta1ListPipelineVersionsResponse(pipeline_versions=found, next_page_token=token)

    def upload_pipeline_version(self, pipelineid: str, name: str, uploaded: bytes = b"") -> Any:
        if any(one.display_name == name for one in self.versions):
            raise Refused(409, f"version {name} already exists")
        version = api.V2beta1PipelineVersion(
            pipeline_id=pipelineid, pipeline_version_id=str(uuid.uuid4()), display_name=name
        )
        version.description = uploaded.decode()
        self.versions.append(version)
        return version

    def experiment_service_list_experiments(self, **query: str) -> Any:
        if self.about.get("multi_user", False) != bool(query.get("namespace")):
            raise Refused(400, "a namespace is for a server with several users, and is a must there")
        found, token = self._page(self.experiments, query)
        return api.V2beta1ListExperimentsResponse(experiments=found, next_page_token=token)

    def experiment_service_create_experiment(self, body: Any) -> Any:
        body.experiment_id = str(uuid.uuid4())
        self.experiments.append(body)
        return body

    def run_service_list_runs(self, experiment_id: str = "", **query: str) -> Any:
        of_experiment = [run for run in self.runs if experiment_id in ("", run.experiment_id)]
        found, token = self._page(of_experiment, query)
        return api.V2beta1ListRunsResponse(runs=found, next_page_token=token)

    def run_service_create_run(self, body: Any) -> Any:
        reference = body.pipeline_version_reference
        if reference.pipeline_version_id not in {one.pipeline_version_id for one in self.versions}:
            raise Refused(404, "pipeline version not found")
        body.run_id, body.state, body.created_at = self.new_id(), "PENDING", self._now()
        self.runs.append(body)
        return body

    def run_service_terminate_run(self, run_id: str) -> dict[str, str]:
        next(run for run in self.runs if run.run_id == run_id).state = "CANCELED"
        return {}

    def run_service_delete_run(self, run_id: str) -> dict[str, str]:
        self.runs = [run for run in self.runs if run.run_id != run_id]
        return {}

    def _now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds * len(self.runs))

    def _page(self, items: list[Any], query: dict[str, str]) -> tuple[list[Any], str]:
        wanted = [item for item in items if matches(item, query.get("filter", ""))]
        start = int(query.get("page_token") or 0)
        end = start + min(self.page, int(query.get("page_size") or 20))
        return wanted[start:end], str(end) if end < len(wanted) else ""


def matches(item: Any, filter_: str) -> bool:
    for predicate in json.loads(filter_)["predicates"] if filter_ else ():
        assert predicate["key"] == "display_name" and predicate["operation"] in (EQUALS, CONTAINS)
        name, text = item.display_name, predicate["stringValue"]
        if not (name == text if predicate["operation"] == EQUALS else text in name):
            return False
    return True


@contextmanager
def served(double: KfpDouble) -> Iterator[KfpDouble]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_DELETE(self) -> None:
            self._answer()

        def log_message(self, *_: Any) -> None:
            pass

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                status, answer = 200, {} if double.raw else self._call(body)
            except Refused as refused:
                status, answer = refused.status, {"message": str(refused), "code": refused.status}
            data = json.dumps(CLIENT.sanitize_for_serialization(answer)).encode()
            kind, data = double.raw or ("application/json", data)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _call(self, body: bytes) -> Any:
            place = urlsplit(self.path)
            query = dict(parse_qsl(place.query, keep_blank_values=True))
            calls = ((route, route.path.fullmatch(place.path)) for route in ROUTES if route.verb == self.command)
            route, found = next(((route, found) for route, found in calls if found), (None, None))
            if route is None or found is None:
                raise Refused(404, f"no such call: {self.command} {place.path}")
            operation = route.operation
            if unknown := set(query) - route.queries:
                raise Refused(400, f"{operation}: unknown query {unknown}")
            double.calls.append(operation)
            sent = self.headers.get("authorization", "").removeprefix("Bearer ")
            if double.tokens is not None and sent not in double.tokens:
                double.before("unauthorized")
                raise Refused(401, "Request header error: the token has expired")
            double.before(operation)
            arguments: dict[str, Any] = {**query, **found.groupdict()}
            if operation in BODIES:
                arguments["body"] = parsed(body, BODIES[operation])
            elif operation == "upload_pipeline_version":
                arguments["uploaded"] = body
            return getattr(double, operation)(**arguments)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    double.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def parsed(body: bytes, model: str) -> Any:
    """Return the body as KFP's model. Refuses keys that the model has not."""
    keys = set(getattr(api, model).attribute_map.values())
    if unknown := set(json.loads(body)) - keys:
        raise Refused(400, f"{model} has no {unknown}")
    return CLIENT.deserialize(type("Response", (), {"data": body.decode()}), model)
