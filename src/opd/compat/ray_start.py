"""Changes to Ray for this process's one `ray.init` that starts a node; its processes inherit the environment.

Ray 2.60 knows no other setting for them.
"""

import os
import secrets
import time
from typing import Any

import ray
from ray._private import services, state
from ray._private.node import Node

START_TIMEOUT_S = 150.0
"""Far above any start seen: a bound on hanging, not on slowness."""
_POLL_S = 0.1
_JOB_IDS = 2**32 - 1  # four bytes, of which all ones mean none


def wait_longer(timeout_s: float = START_TIMEOUT_S) -> None:
    """Wait up to `timeout_s` for each daemon, in this process and in the node's workers.

    Ray gives the raylet 30 s to register, a constant. It asks by `services.get_node`, which raises RuntimeError until then.
    It waits 30 s for the control store. A worker waits 5 s for its answer, and then dies with a traceback in the log.
    """
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

    services.get_node = get_node
    for name in ("RAY_gcs_server_port_wait_time_s", "RAY_gcs_rpc_server_connect_timeout_s"):
        os.environ.setdefault(name, str(int(timeout_s)))


def draw_job_id() -> None:
    """Draw the job's id, which in every embedded Ray is 01000000 by default.

    verl 0.9.1 names the sockets in /tmp by which vLLM gets the weights after Ray's job id (vllm_rollout.py). With equal
    ids one of two runs on a host ended with "Address already in use", and the other waited without end.
    """
    state.next_job_id = lambda: ray.JobID.from_int(secrets.randbelow(_JOB_IDS))


def leave_out_daemons() -> None:
    """Start no process that a run on this node never uses.

    Ray starts its autoscaler, its dashboard's server (for usage statistics) and an idle worker for each CPU slot. All
    import Ray while the run starts on the same cores. The run's actors have a runtime environment and use no idle worker.
    """
    Node.start_monitor = lambda *_, **__: None
    Node.start_api_server = lambda node, **_: setattr(node, "_webui_url", "")
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
