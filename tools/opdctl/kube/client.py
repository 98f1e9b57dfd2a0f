"""The API server as plain JSON: objects are plain trees, and each rejection is one error with its fix."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from opd.errors import StoreUnavailable
from opdctl.console import ToolError, note

# Groups of the kinds that the tool reads, outside the core.
_QUEUEING = "/apis/kueue.x-k8s.io/v1beta2"
GROUPS = {"rayjobs": "/apis/ray.io/v1", "workloads": _QUEUEING, "localqueues": _QUEUEING}
CORE = "/api/v1"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
KUEUE = "kueue.x-k8s.io"
QUEUE_LABEL = f"{KUEUE}/queue-name"
RUN_LABEL, KIND_LABEL, ROLE_LABEL = "opd/run-id", "opd/kind", "app.kubernetes.io/component"
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
PAGE_SIZE = 500
HTTP_UNAUTHORIZED, HTTP_FORBIDDEN, HTTP_NOT_FOUND, HTTP_CONFLICT = 401, 403, 404, 409
HTTP_TOO_MANY, HTTP_SERVER_ERROR = 429, 500

Tree = dict[str, Any]
Found = TypeVar("Found")


class ClusterError(ToolError):
    """A rejection by the API server, by its HTTP status; without an answer the status is 0."""

    def __init__(self, message: str, *, status: int = 0, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.status = status

    @property
    def is_passing(self) -> bool:
        """True where the server may answer the same request a moment later."""
        return self.status in (0, HTTP_TOO_MANY) or self.status >= HTTP_SERVER_ERROR


def unix_s(stamp: str | None) -> float:
    """Return the Unix seconds of an RFC 3339 stamp (`2026-11-21T10:00:00Z`, up to nine decimals); 0 for None."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


class KubeApi:
    """One namespace of one cluster.

    Every method raises `ClusterError` for a refusal, or where no whole answer came.
    """

    def __init__(self, client: Any, *, namespace: str, context: str | None):
        self.client = client
        self.namespace = namespace
        self.context = context

    def path(self, kind: str, name: str | None = None, part: str | None = None) -> str:
        """Return the path of a kind's objects in the namespace, of one object, or of its subresource."""
        words = [GROUPS.get(kind, CORE), "namespaces", self.namespace, kind, name, part]
        return "/".join(word for word in words if word)

    def get(self, path: str, **query: str | int) -> Tree:
        return self._json("GET", path, query)

    def find(self, path: str, **query: str | int) -> Tree | None:
        """Return the object; None where the object or its kind does not exist."""
        try:
            return self.get(path, **query)
        except ClusterError as error:
            if error.status == HTTP_NOT_FOUND:
                return None
            raise

    def list(self, path: str, *, selector: str = "", **query: str | int) -> list[Tree]:
        """Return every object at a path; lists leave out `kind` and `apiVersion`."""
        items: list[Tree] = []
        token = ""
        while True:
            extra = {**({"labelSelector": selector} if selector else {}), **({"continue": token} if token else {})}
            page = self.get(path, limit=PAGE_SIZE, **extra, **query)
            items += page.get("items") or []
            token = page.get("metadata", {}).get("continue", "")
            if not token:
                return items

    def create(self, path: str, body: Tree, **query: str | int) -> Tree:
        return self._json("POST", path, query, body)

    def delete(self, path: str) -> bool:
        """Delete an object, its dependents in the background; return False if there was none."""
        try:
            self._json("DELETE", path, {"propagationPolicy": "Background"})
        except ClusterError as error:
            if error.status == HTTP_NOT_FOUND:
                return False
            raise
        return True

    def stream(self, path: str, *, read_timeout_s: float, **query: str | int) -> Iterator[bytes]:
        """Yield the chunks of a long answer until the server ends it."""
        import urllib3

        response = self._send("GET", path, query, None, read_timeout_s)
        try:
            if response.status >= 300:
                raise _refusal(f"GET {path}", response.status, response.read())
            yield from response.stream(2**14)
        except urllib3.exceptions.HTTPError as error:
            raise ClusterError(f"{path}: the stream broke off: {error}") from error
        finally:
            response.close()

    def _json(self, method: str, path: str, query: Mapping[str, str | int], body: Tree | None = None) -> Tree:
        import urllib3

        response = self._send(method, path, query, body, READ_TIMEOUT_S)
        try:
            data: bytes = response.read()
        except urllib3.exceptions.HTTPError as error:
            raise ClusterError(f"{method} {path}: the answer broke off: {error}") from error
        finally:
            response.release_conn()
        if response.status >= 300:
            raise _refusal(f"{method} {path}", response.status, data)
        tree: Tree = json.loads(data)
        return tree

    def _send(
        self, method: str, path: str, query: Mapping[str, str | int], body: Tree | None, read_timeout_s: float
    ) -> Any:
        import urllib3

        headers = {"Accept": "application/json, */*", "Content-Type": "application/json"}
        request = self.client.param_serialize(
            method, path, query_params=list(query.items()), header_params=headers, body=body, auth_settings=["BearerToken"]
        )  # fmt: skip
        try:
            answer = self.client.call_api(*request, _request_timeout=(CONNECT_TIMEOUT_S, read_timeout_s))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            host = self.client.configuration.host
            raise ClusterError(
                f"no answer from the API server at {host}: {_short(error)}",
                fix="check the network and the kubeconfig context (--context)",
            ) from error
        return answer.response


def connect(*, namespace: str | None, context: str | None) -> KubeApi:
    """Return the API of a kubeconfig context's cluster.

    Args:
        namespace: the context's own by default, else `default`.
    """
    if not (existing := kubeconfigs()):
        fix = "set KUBECONFIG, or put one at ~/.kube/config"
        raise ClusterError("no way to a cluster: there is no kubeconfig", fix=fix)
    import yaml
    from kubernetes import client, config

    configuration = client.Configuration()
    # The library would try an unreachable server three more times while a user waits.
    configuration.retries = 1
    files = os.pathsep.join(map(str, existing))
    try:
        config.load_kube_config(files, context=context, client_configuration=configuration)
        contexts, active = config.list_kube_config_contexts(files)
        chosen = active if context is None else next((item for item in contexts if item["name"] == context), {})
        own = chosen.get("context", {}).get("namespace")
    except (config.ConfigException, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        text = f"the kubeconfig is malformed: {' '.join(str(error).split())} ({files})"
        fix = "mend the kubeconfig, set KUBECONFIG, or name a context of it with --context"
        raise ClusterError(f"no way to a cluster: {text}", fix=fix) from error
    return KubeApi(client.ApiClient(configuration), namespace=namespace or own or "default", context=context)


def wait_until(look: Callable[[], Found | str], *, pause: Callable[[], None]) -> Found:
    """Wait until a look returns what it finds; note each new text, also while cluster or store do not answer.

    Args:
        look: returns a text as long as it has not found it; an empty text is not noted.
        pause: sleeps between two looks, or raises.
    """
    noted = ""
    while True:
        try:
            found = look()
        except (ClusterError, StoreUnavailable) as error:
            if isinstance(error, ClusterError) and not error.is_passing:
                raise
            place = "store" if isinstance(error, StoreUnavailable) else "cluster"
            found = f"the {place} is unreachable, waiting for it: {error}"
        if not isinstance(found, str):
            return found
        if found and found != noted:
            note(found)
        noted = found
        pause()


def kubeconfigs() -> list[Path]:
    """Return the kubeconfig files that exist: $KUBECONFIG's, else the user's."""
    named = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return [file for file in map(Path, filter(None, named.split(os.pathsep))) if file.is_file()]


def _refusal(what: str, status: int, body: bytes) -> ClusterError:
    """Return the error of an answer that is no success; its body is most often a `Status` object."""
    message = body[:500].decode(errors="replace") or f"HTTP {status}"
    with contextlib.suppress(ValueError, TypeError, LookupError):
        message = json.loads(body)["message"]
    return ClusterError(f"cannot {what}: {message}", status=status, fix=_fix(status, message))


def _fix(status: int, message: str) -> str:
    if status == HTTP_UNAUTHORIZED:
        return "the credentials of this kubeconfig context are not accepted: log in again"
    if "exceeded quota" in message and "persistentvolumeclaims" in message:
        return "delete claims of runs that are over (`kubectl get pvc -l opd/run-id`), or have the ResourceQuota raised"
    if "exceeded quota" in message:
        return "wait for other runs to end, ask for less in `cluster`, or have the ResourceQuota raised"
    if status == HTTP_FORBIDDEN and "User " in message:
        return "ask the cluster's admin for the Role opd-user of manifests/cluster in this namespace"
    return ""


def _short(error: BaseException) -> str:
    """Return the innermost reason, which urllib3 wraps in its own addresses."""
    reason = getattr(error, "reason", None)
    return _short(reason) if isinstance(reason, BaseException) else str(error)
