"""How doctor looks: what may not be read is not checked, and said so; nothing that one may not see keeps the other checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opdctl.doctor.report import Check, bad, unseen
from opdctl.kube.client import KubeApi, Tree
from opdctl.kube.errors import HTTP_FORBIDDEN, HTTP_NOT_FOUND, ClusterError, ClusterUnreachable

APPLY_MANIFESTS = "an admin applies manifests/cluster"
SEES = f"{APPLY_MANIFESTS}: the Role opd-user and the ClusterRole opd-user-view allow it"


class OneLook(KubeApi):
    """A cluster of which every address is read once: all checks judge the same objects."""

    def __init__(self, api: KubeApi) -> None:
        super().__init__(api.client, namespace=api.namespace, context=api.context)
        self._seen: dict[tuple[Any, ...], Tree | ClusterError] = {}

    def get(self, path: str, **query: str | int) -> Tree:
        key = (path, *query.items())
        if key not in self._seen:
            try:
                self._seen[key] = super().get(path, **query)
            except ClusterError as error:
                self._seen[key] = error
        found = self._seen[key]
        if isinstance(found, ClusterError):
            raise found
        return found


def look_at(name: str, read: Callable[[], list[Check]]) -> list[Check]:
    """The checks, or the one line that nobody could look."""
    try:
        return read()
    except ClusterUnreachable as error:
        return [bad(name, str(error), error.fix)]
    except ClusterError as error:
        if error.status == HTTP_FORBIDDEN:
            return [unseen(name, str(error), SEES)]
        return [bad(name, str(error), error.fix)]


def seen(read: Callable[[], Any], otherwise: Any = None) -> Any:
    """What is there, `otherwise` where there is none of its kind, or it may not be looked at."""
    try:
        return read()
    except ClusterError as error:
        if error.status in (HTTP_FORBIDDEN, HTTP_NOT_FOUND):
            return otherwise
        raise
