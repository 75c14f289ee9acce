"""moto's S3 server in a thread of the test: what was asked of it is counted, and a test can come in between."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

BUCKET = "store"
PLACE = f"s3://{BUCKET}/team/iar"
Reply = tuple[str, bytes]


class Request(NamedTuple):
    """One request: method, path below the bucket, query."""

    method: str
    path: str
    query: str

    @property
    def kind(self) -> str:
        """What it is, by the names of the S3 API."""
        upload, parts = "uploadId=" in self.query, "partNumber=" in self.query
        names = {
            "PUT": "UploadPart" if parts else "PutObject",
            "POST": "Complete" if upload else "DeleteObjects" if "delete" in self.query else "CreateUpload",
            "GET": "ListParts" if upload else "ListUploads" if "uploads" in self.query else "GetObject",
        }
        if self.method == "GET" and "list-type=2" in self.query:
            return "ListObjects"
        return names.get(self.method, self.method)


class Quiet(MotoRequestHandler):
    """Leaves out the line a request."""

    def log_request(self, *arguments: Any) -> None:
        """Say nothing."""


class S3Server:
    """A running server. `before` is called with each request and may answer it: a status line and a body."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.before: Callable[[Request], Reply | None] = lambda request: None
        self.after: Callable[[Request, list[bytes]], list[bytes]] = lambda request, body: body
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._moto_lock = threading.Lock()
        self.server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Quiet)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def counted(self) -> Counter[str]:
        """Return how many requests of each kind came since the last call."""
        with self._lock:
            now, self.requests = self.requests, []
        return Counter(request.kind for request in now)

    def client(self) -> Any:
        import boto3

        return boto3.client("s3")

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        path = re.sub(rf"^/{BUCKET}/?", "", environ["PATH_INFO"])
        request = Request(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""))
        with self._lock:
            self.requests.append(request)
        if (reply := self.before(request)) is not None:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(reply[0], [("Content-Type", "application/xml"), ("Content-Length", str(len(reply[1])))])
            return [reply[1]]
        try:
            # moto has no locks of its own: of two writers that complete an upload one meets what the other took away.
            with self._moto_lock:
                answer = self._moto(environ, start_response)
            return self.after(request, answer)
        except KeyError:
            # moto's answer about an upload that another writer has just completed; S3 has a name for it.
            if request.kind not in ("UploadPart", "Complete"):
                raise
            status, body = error("NoSuchUpload", "404 Not Found")
            start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server with one empty bucket, which AWS's variables lead to."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    server = S3Server()
    thread = threading.Thread(target=server.server.serve_forever, daemon=True)
    thread.start()
    values = {"ENDPOINT_URL": server.url, "DEFAULT_REGION": "us-east-1", "EC2_METADATA_DISABLED": "true"}
    # moto's own checksums are slow; those of the client are one test's matter.
    values |= {"REQUEST_CHECKSUM_CALCULATION": "when_required", "RESPONSE_CHECKSUM_VALIDATION": "when_required"}
    values |= {"ACCESS_KEY_ID": "AKIATEST", "SECRET_ACCESS_KEY": "s3cret-key", "CONFIG_FILE": "/nowhere"}
    for name, value in values.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    server.client().create_bucket(Bucket=BUCKET)
    server.counted()
    try:
        yield server
    finally:
        server.server.shutdown()
        thread.join()
        server.server.server_close()
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].reset()


def error(code: str, status: str) -> Reply:
    """Return an S3 error as a server words it."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>made up</Message></Error>'
    return status, body.encode()
