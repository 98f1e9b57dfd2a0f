"""The API server's rejections as the tool's own error, with the fix."""

from __future__ import annotations

import json
from typing import Any

from opdctl.errors import ToolError

HTTP_UNAUTHORIZED, HTTP_FORBIDDEN, HTTP_NOT_FOUND, HTTP_CONFLICT = 401, 403, 404, 409
HTTP_TOO_MANY, HTTP_SERVER_ERROR = 429, 500


class ClusterError(ToolError):
    """A rejection by the API server; `status` is its HTTP status, `reason` its own word for it."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.status = status
        self.reason = reason

    @property
    def is_passing(self) -> bool:
        """True where the server may answer the same request a moment later."""
        return self.status == HTTP_TOO_MANY or self.status >= HTTP_SERVER_ERROR


class ClusterUnreachable(ClusterError):
    """An API server without an answer, or no way to it."""

    @property
    def is_passing(self) -> bool:
        return True


class StreamBroken(ClusterUnreachable):
    """An answer that began and broke off."""


def refusal(what: str, status: int, body: bytes) -> ClusterError:
    """Return the error of an answer that is no success.

    Args:
        what: the request in words, such as `create RayJob r in namespace opd`.
        body: the answer; most often a `Status` object.
    """
    try:
        answer: dict[str, Any] = json.loads(body)
    except ValueError:
        answer = {}
    answer = answer if isinstance(answer, dict) else {}
    message = answer.get("message") or body[:500].decode(errors="replace") or f"HTTP {status}"
    return ClusterError(
        f"cannot {what}: {message}", status=status, reason=str(answer.get("reason", "")), fix=_fix(status, message)
    )


def _fix(status: int, message: str) -> str:
    if status == HTTP_UNAUTHORIZED:
        return "the credentials of this kubeconfig context are not accepted: log in again"
    if "exceeded quota" in message and "persistentvolumeclaims" in message:
        return "`opdctl delete --unused-claims` removes the claims that no run needs, or have the ResourceQuota raised"
    if "exceeded quota" in message:
        return "wait for other runs to end, ask for less in `cluster`, or have the ResourceQuota raised"
    if status == HTTP_FORBIDDEN and "at the cluster scope" in message:
        return "the Role opd-user is for one namespace: name it with -n, or ask the cluster's admin for a ClusterRole"
    if status == HTTP_FORBIDDEN and "User " in message:
        return "ask the cluster's admin for the Role opd-user of manifests/cluster in this namespace"
    return ""
