"""Start of an embedded Ray: time for its daemons, a job id of its own, no process that a single node never uses."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Far above any start seen: a bound on hanging, not on slowness.
START_TIMEOUT_S = 150.0
_POLL_S = 0.1
# Seconds: until the control store is up, and until it answers a process that begins; Ray's own are 30 and 5.
_STORE_WAITS = ("RAY_gcs_server_port_wait_time_s", "RAY_gcs_rpc_server_connect_timeout_s")
_PRESTART = "RAY_prestart_worker_first_driver"
_JOB_IDS = 2**32 - 1  # four bytes, of which all ones mean none


@contextmanager
def patient_start(timeout_s: float = START_TIMEOUT_S) -> Iterator[None]:
    """Have a `ray.init` that starts a node, and the node's workers, wait up to `timeout_s` for each daemon.

    Ray 2.60 gives the raylet 30 s to register, a constant without a setting. It asks by `services.get_node`, which raises
    RuntimeError until then. A worker that waits too long for the control store dies with a traceback in the driver's log.
    """
    from ray._private import services

    once = services.get_node

    def get_node(*arguments: Any, **options: Any) -> Any:
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return once(*arguments, **options)
            except RuntimeError:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(_POLL_S)

    ours = [name for name in _STORE_WAITS if name not in os.environ]
    os.environ.update(dict.fromkeys(ours, str(int(timeout_s))))  # the node's processes inherit them
    services.get_node = get_node
    try:
        yield
    finally:
        services.get_node = once
        for name in ours:
            del os.environ[name]


@contextmanager
def own_job_id() -> Iterator[None]:
    """Have a `ray.init` draw its job's id, which in every embedded Ray is 01000000 by default.

    verl 0.9.1 names the sockets in /tmp by which vLLM gets the weights after Ray's job id (vllm_rollout.py). With equal
    ids one of two runs on a host ended with "Address already in use", and the other waited without end.
    """
    import ray
    from ray._private import state

    once = state.next_job_id
    state.next_job_id = lambda: ray.JobID.from_int(secrets.randbelow(_JOB_IDS))
    try:
        yield
    finally:
        state.next_job_id = once


@contextmanager
def bare_node() -> Iterator[None]:
    """Have a `ray.init` that starts a node start no process that a run on this node never uses.

    Ray 2.60 starts its autoscaler, its dashboard's server (for usage statistics) and an idle worker for each CPU slot. All
    import Ray while the run starts on the same cores. The run's actors have a runtime environment and use no idle worker.
    """
    from ray._private.node import Node

    before = {name: getattr(Node, name) for name in ("start_monitor", "start_api_server")}

    def no_server(node: Any, **_: Any) -> None:
        node._webui_url = ""

    for name in before:
        setattr(Node, name, no_server)
    os.environ.setdefault(_PRESTART, "0")  # the raylet inherits it
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(Node, name, method)
