"""Turns the API server's refusals into the tool's own error: one block that says what mends it."""

from __future__ import annotations

import json
from typing import Any

from opdctl.errors import ToolError

HTTP_UNAUTHORIZED, HTTP_FORBIDDEN, HTTP_NOT_FOUND, HTTP_CONFLICT = 401, 403, 404, 409
HTTP_TOO_MANY, HTTP_SERVER_ERROR = 429, 500


class ClusterError(ToolError):
    """The API server refused a request; `status` is its HTTP status, `reason` its own word for it."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.status = status
        self.reason = reason

    @property
    def is_passing(self) -> bool:
        """Whether the same request may be answered a moment later: the fault is the server's, not the request's."""
        return self.status == HTTP_TOO_MANY or self.status >= HTTP_SERVER_ERROR


class ClusterUnreachable(ClusterError):
    """No answer from the API server, or no way to ask it."""

    @property
    def is_passing(self) -> bool:
        return True


class StreamBroken(ClusterUnreachable):
    """An answer that began broke off."""


def refusal(what: str, status: int, body: bytes) -> ClusterError:
    """The error of an answer that is no success.

    Args:
        what: the request in words, `create RayJob r in namespace opd`.
        body: the answer, a `Status` object in most cases.
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
    if "exceeded quota" in message:
        return "wait for other runs to end, ask for less in `cluster`, or have the ResourceQuota raised"
    if status == HTTP_FORBIDDEN and "at the cluster scope" in message:
        return "the Role opd-user is for one namespace: name it with -n, or ask the cluster's admin for a ClusterRole"
    if status == HTTP_FORBIDDEN and "User " in message:
        part = " with the component progress" if "rbac.authorization.k8s.io" in message else ""
        return f"ask the cluster's admin for the Role opd-user of manifests/cluster{part} in this namespace"
    return ""
