"""A cluster as one user sees it: kubeconfig files, and kubectl run with one of them."""

import base64
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.cluster.pki import Identity
from tests.processes import output

from gotools import find

Tree = dict[str, Any]
_CONFLICT = "the object has been modified; please apply your changes to the latest version and try again"


class KubeError(RuntimeError):
    """kubectl refused; the text is what it said."""


def write_kubeconfig(
    path: Path,
    *,
    server: str,
    authority: Path,
    identity: Identity | None = None,
    token: str = "",
    namespace: str = "default",
) -> Path:
    """A kubeconfig with everything embedded, readable by its owner alone."""
    user: Tree = {"token": token}
    if identity is not None:
        user = {"client-certificate-data": _text64(identity.certificate), "client-key-data": _text64(identity.key)}
    cluster = {"server": server, "certificate-authority-data": _text64(authority)}
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "opd", "cluster": cluster}],
        "users": [{"name": "opd", "user": user}],
        "contexts": [{"name": "opd", "context": {"cluster": "opd", "user": "opd", "namespace": namespace}}],
        "current-context": "opd",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(tree, indent=1))  # JSON is YAML
    return path


def _text64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@dataclass(frozen=True, kw_only=True)
class Kube:
    """kubectl as one user."""

    kubeconfig: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which kubectl, helm and opdctl talk to this cluster as this user, without the caller's own."""
        home = str(self.kubeconfig.parent)
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": home,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": f"{home}/kubectl-cache",
            "NO_PROXY": "*",
        }

    def run(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        """kubectl's output.

        Raises:
            KubeError: it ended with another code than 0, or did not end in time.
        """
        options = {"env": self.environment, "input": stdin, "timeout": timeout_s}
        try:
            return output(find("kubectl"), *arguments, fails=KubeError, **options)
        except subprocess.TimeoutExpired as error:
            raise KubeError(f"kubectl {' '.join(arguments)}: no answer within {timeout_s:g} s") from error

    def apply(self, *arguments: str) -> None:
        """`kubectl apply --server-side`, once more where a controller has written an object meanwhile: the server asks for that."""
        try:
            self.run("apply", "--server-side", *arguments)
        except KubeError as error:
            if _CONFLICT not in str(error):
                raise
            self.run("apply", "--server-side", *arguments)

    def get(self, resource: str, name: str, *, namespace: str = "default") -> Tree:
        """One object.

        Raises:
            KubeError: it is not there.
        """
        return json.loads(self.run("get", resource, name, "-n", namespace, "-o", "json"))

    def items(self, resource: str, *, namespace: str = "default", selector: str = "") -> list[Tree]:
        """Objects of a kind, by name."""
        return json.loads(self.run("get", resource, "-n", namespace, "-l", selector, "-o", "json"))["items"]

    def create(self, objects: Iterable[Tree], *, namespace: str = "default") -> None:
        """Create objects that are not there yet."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.run("create", "-n", namespace, "-f", "-", stdin=text)

    def until(self, what: str, look: Callable[[], Any], *, timeout_s: float = 300) -> Any:
        """The first true result of `look`, which may raise KubeError until then.

        Raises:
            TimeoutError: there was none in time; the text ends with what was seen last.
        """
        deadline, seen = time.monotonic() + timeout_s, ""
        while True:
            try:
                result = look()
                if result:
                    return result
                seen = repr(result)
            except KubeError as error:
                seen = str(error)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {timeout_s:.0f} s; last seen: {seen}")
            time.sleep(0.2)
