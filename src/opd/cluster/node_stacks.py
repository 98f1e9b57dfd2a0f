"""Prints the stacks of a run's processes on the other nodes of its Ray cluster: `python -m opd.cluster.node_stacks`.

A process of its own, which `opd.runs.stacks` ends where Ray does not answer.
"""

from __future__ import annotations

import sys
import time

import ray

from opd.cluster.nodes import on_node, working_nodes
from opd.runs import stacks

# Under `opd.runs.stacks.NODES_TIMEOUT_S`, so that who answers is heard beside who does not.
ANSWER_TIMEOUT_S = 40.0


def main() -> int:
    """Ask every other node; returns the exit code."""
    ray.init(
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {stacks.FOLDER_VARIABLE: str(stacks.folder())}},
    )
    here = ray.get_runtime_context().get_node_id()
    asked = {on_node(node, dump_here): node for node in working_nodes() if node != here}
    until_s = time.monotonic() + ANSWER_TIMEOUT_S
    for answer, node in asked.items():
        try:
            text = ray.get(answer, timeout=max(until_s - time.monotonic(), 0.0))
        except ray.exceptions.RayError as error:
            text = f"(no answer: {error})"
        print(f"##### node {node}\n\n{text}", flush=True)
    return 0


def dump_here() -> str:
    """The stacks of the run's processes on the node that this runs on."""
    return stacks.dump(stacks.registered())


if __name__ == "__main__":
    sys.exit(main())
