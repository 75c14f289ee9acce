"""The Kubernetes API as the doctor reaches it: from a pod or by KUBECONFIG, each call once and briefly."""

import os
from typing import Any

from iar.errors import TemporaryError, UserError
from iar.methods.explain import redact

ANSWER_SECONDS = 10
JSON = "application/json"
# Of a secret its existence matters; so its content never leaves the server.
ABOUT = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class Forbidden(UserError):
    """This account may not do that."""


class ClusterApi:
    """The Kubernetes API for one namespace. Raises Forbidden where it is refused, TemporaryError where it fails."""

    def __init__(self, namespace: str) -> None:
        from kubernetes import client

        self.namespace = namespace
        self._api = client.ApiClient(_configuration())

    @property
    def host(self) -> str:
        """Address of the API server, for showing."""
        return redact(str(self._api.configuration.host))

    def get(self, path: str) -> dict[str, Any] | None:
        """Return the object at a path; None where it does not exist."""
        return self._call("GET", path)

    def has(self, path: str) -> bool:
        """Return whether there is an object at a path, without reading what it holds."""
        return self._call("GET", path, accept=ABOUT) is not None

    def items(self, path: str) -> list[dict[str, Any]]:
        """Return the items of the list at a path."""
        return list((self.get(path) or {}).get("items") or ())

    def may(self, group: str, resource: str, verb: str) -> bool:
        """Ask the server whether this process may do that in the namespace."""
        kind, _, part = resource.partition("/")
        asked = {"namespace": self.namespace, "group": group, "resource": kind, "subresource": part, "verb": verb}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = self._call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool(answer and answer.get("status", {}).get("allowed"))

    def served(self, group: str) -> list[str]:
        """Return the versions of an API group; [] where the cluster does not have it."""
        about = self.get(f"/apis/{group}") or {}
        return [version["version"] for version in about.get("versions", ())]

    def delete(self, path: str, preconditions: dict[str, Any]) -> None:
        """Delete what is at a path, its dependents first, if it is still as the preconditions say."""
        self._call("DELETE", path, {"propagationPolicy": "Foreground", "preconditions": preconditions})

    def _call(self, verb: str, path: str, body: Any = None, accept: str = JSON) -> dict[str, Any] | None:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            answer = self._api.call_api(
                path, verb, header_params={"Accept": accept}, body=body, response_type="object",
                auth_settings=["BearerToken"], _return_http_data_only=True, _request_timeout=ANSWER_SECONDS,
            )  # fmt: skip
        except ApiException as error:
            if error.status == 404:
                return None
            if error.status in (401, 403):
                raise Forbidden(f"Kubernetes at {self.host} forbids {verb} {path} ({error.status})") from error
            raise TemporaryError(f"Kubernetes at {self.host}: {verb} {path} failed ({error.status})") from error
        except HTTPError as error:
            reason = str(getattr(error, "reason", error)).rpartition(": ")[2]
            raise TemporaryError(f"Kubernetes at {self.host} does not answer ({reason})") from error
        except UnicodeDecodeError:
            answer = None
        # What is no JSON comes as text.
        if not isinstance(answer, dict):
            raise UserError(
                f"{self.host} answers {verb} {path} with a page, probably a login, and is no Kubernetes API; correct "
                "the server's address in KUBECONFIG"
            )
        return answer


def _configuration() -> Any:
    """Return the access of the pod this runs in, else of KUBECONFIG. Raises UserError where there is neither."""
    from kubernetes import client, config

    access = client.Configuration()
    access.retries = False
    try:
        config.load_incluster_config(client_configuration=access)
    except config.ConfigException:
        try:
            # Its own default is what the variable held when it was imported.
            config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=access)
        except config.ConfigException as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"no access to a Kubernetes cluster: {reason}") from error
    return access
