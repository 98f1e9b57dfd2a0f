"""`opdctl dashboard`: a run's Ray dashboard on this machine, with the token that it asks for."""

from __future__ import annotations

from typing import Annotated

import typer

from opdctl.completion import Run
from opdctl.console import Context, Namespace, note

Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Local port; 0 for any free one.")]
OpenTimeout = Annotated[
    float | None, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Close it after this; by default never.")
]


def dashboard(
    run: Run, namespace: Namespace = None, context: Context = None, port: Port = 8265, timeout: OpenTimeout = None
) -> None:
    """Open a run's Ray dashboard and job API on this machine, until Ctrl-C.

    The token goes into a file that only you can read and that is gone afterwards; it is never printed.

    Example: `opdctl dashboard my-run -n opd`
    """
    import contextlib
    import tempfile
    import threading
    from pathlib import Path

    from opdctl.errors import usage_error
    from opdctl.forward import Forwarder
    from opdctl.kube.dashboard import DASHBOARD_PORT, PodPort, head_pod, ray_token
    from opdctl.runs.control import require_job
    from opdctl.runs.locate import in_cluster

    api, found = in_cluster(run, store=None, namespace=namespace, context=context, timeout_s=30.0)
    job = require_job(found.in_cluster, found.run_id, api.namespace)
    assert found.in_cluster is not None
    pod = head_pod(found.in_cluster, found.run_id)
    token = ray_token(api, job.ray_cluster)
    try:
        forwarder = Forwarder(
            PodPort(api, pod, DASHBOARD_PORT).connect, port=port, on_error=lambda text: note(f"warning: {text}")
        )
    except OSError as error:
        raise usage_error(
            f"port {port} of this machine is taken: {error}", fix="choose another with --port, or 0"
        ) from error
    with tempfile.TemporaryDirectory(prefix="opdctl-") as folder, contextlib.closing(forwarder):
        url = f"http://127.0.0.1:{forwarder.port}"
        print(f"dashboard of {found.run_id} ({pod}): {url}", flush=True)
        if token is not None:
            file = Path(folder) / "token"
            file.touch(mode=0o600)
            file.write_bytes(token)
            print(f"it asks for the token in {file}", flush=True)
            print(f"  RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={file} ray job list --address {url}", flush=True)
        if timeout is not None:
            timer = threading.Timer(timeout, forwarder.close)
            timer.daemon = True  # Ctrl-C ends the command before it
            timer.start()
        with contextlib.suppress(KeyboardInterrupt):
            forwarder.serve()
    note("closed; the token's file is gone with it" if token is not None else "closed")
