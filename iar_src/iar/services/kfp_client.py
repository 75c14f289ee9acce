"""kfp's own client, made strict and quiet: what is no answer of KFP is an error, and so is a token file without one."""

import contextlib
import functools
import io
import json
import os
import re
import socket
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from iar.errors import UserError

TOKEN_FILE = "KF_PIPELINES_SA_TOKEN_PATH"  # as kfp itself names it
ANSWER_SECONDS = 60.0


class NotKfp(Exception):
    """An answer that KFP does not give; the text says what it is and what to do."""


def open_client(host: str, namespace: str) -> Any:
    """Return kfp's client, which neither repeats the health check for 25 s nor writes into the home folder.

    Its calls raise NotKfp for an answer that is not KFP's, where kfp itself would read a page as empty fields.
    """
    from kfp.client import Client, TokenCredentialsBase
    from kfp_server_api import ApiClient

    class TokenFile(TokenCredentialsBase):  # type: ignore[misc]
        def refresh_api_key_hook(self, config: Any) -> None:
            config.api_key["authorization"] = _token()

    class PlainClient(Client):  # type: ignore[misc]
        def get_kfp_healthz(self, sleep_duration: int = 0) -> Any:
            self.read_strictly()  # kfp asks this while it is being made
            return self._healthz_api.healthz_service_get_healthz()

        def set_user_namespace(self, namespace: str) -> None:
            self._context_setting["namespace"] = namespace

        def read_strictly(self) -> None:
            api = self._healthz_api.api_client  # the one that all its calls go through
            api.deserialize = functools.partial(_strictly, functools.partial(ApiClient.deserialize, api))

        def read(self, path: str) -> Any:
            """Return the JSON object at a path of the server."""
            return self._healthz_api.api_client.call_api(
                path, "GET", response_type="object", auth_settings=["Bearer"], _return_http_data_only=True
            )

    credentials = TokenFile() if Path(_token_path()).is_file() else None
    client = PlainClient(host=host, namespace=namespace or "kubeflow", credentials=credentials)
    client.read_strictly()
    return client


def _strictly(deserialize: Callable[[Any, str], Any], response: Any, model: str) -> Any:
    """Return a response as the model that it must be. Raises NotKfp where it is something else."""
    import kfp_server_api

    try:
        data = json.loads(response.data)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        kind = (response.getheader("content-type") or "no content type").partition(";")[0]
        raise NotKfp(f"a page ({kind}), probably a login; {admission()}")
    fields = getattr(getattr(kfp_server_api, model, None), "attribute_map", {}).values()
    if data and fields and not data.keys() & set(fields):
        raise NotKfp(f"JSON that is not KFP's ({', '.join(sorted(data))[:80]}); {admission()}")
    try:
        return deserialize(response, model)
    except (ValueError, TypeError, AttributeError) as error:
        said = str(error).splitlines()[0][:80]
        raise NotKfp(f"a {model} that kfp here cannot read ({said}); install a kfp as new as the server") from error


def admission() -> str:
    """Return what to do where something else than KFP answers."""
    return f"set the token that lets you in with {token_file()}, and check --host"


def _token() -> str:
    """Return the token, read anew as it may have been renewed. Raises UserError where the file holds none."""
    try:
        token = Path(_token_path()).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(f"{token_file()}: {error.strerror}; allow reading it, or name another") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{token_file()} is not text, hence no token; write the token into it") from error
    # It goes into a header, which takes no blanks.
    if not re.fullmatch(r"[!-~]+", token):
        what = "holds more than one word of ASCII" if token else "is empty"
        raise UserError(f"{token_file()} {what}, hence no token; write the token into it")
    return token


def _token_path() -> str:
    from kfp.client import KF_PIPELINES_SA_TOKEN_PATH

    return os.environ.get(TOKEN_FILE) or str(KF_PIPELINES_SA_TOKEN_PATH)


def token_file() -> str:
    return f"the file {_token_path()} ({TOKEN_FILE})"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep kfp's links and warnings from a command's output."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Give up on a silent server: kfp's client takes no timeout, so the default of all sockets is lent to it."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(ANSWER_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
