"""The store behind a proxy that answers 503 on demand: the same server, by another Secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.cluster.isolation import NODE_IP
from tests.e2e.cluster.services import S3_PORT
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.scenarios.scene import Scene
from tests.runs.s3.server import FailingProxy

PROXIED_SECRET = "proxied-store"
_PORT = 9001  # overrides/common.yaml lets the pods reach it


@contextmanager
def proxied_store(scene: Scene) -> Iterator[FailingProxy]:
    """A running proxy, and the Secret that leads to it, until the block is left."""
    store = {**scene.store(), "AWS_ENDPOINT_URL": f"http://{NODE_IP}:{_PORT}"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": PROXIED_SECRET}, "stringData": store}
    with FailingProxy(server_port=S3_PORT, address=NODE_IP, port=_PORT).running() as proxy:
        scene.user.create([secret], namespace=NAMESPACE)
        try:
            yield proxy
        finally:
            scene.user.run("delete", "secret", PROXIED_SECRET, "-n", NAMESPACE)
