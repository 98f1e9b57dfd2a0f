"""Addresses of an embedded Ray and of verl's processes: 127.0.0.1, out of reach of the machine's network.

Ray runs what its clients send, and gloo and NCCL read what reaches them. On the address of a laptop's network they would run
any sender's code. In a cluster the chart's NetworkPolicy guards these ports.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from opd.experiment import AnyRunSpec

_INIT_METHOD = "DIST_INIT_METHOD"


def stay_on_loopback() -> None:
    """Set Ray, gloo and NCCL of a run that joins no cluster to 127.0.0.1, before the import of Ray.

    Ray takes a loopback address for its node only where it knows that there can be no cluster. It replaces
    `ray.init(_node_ip_address="127.0.0.1")` by the node's own address.
    """
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    for library in ("GLOO", "NCCL") if sys.platform == "linux" else ():
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")


@contextmanager
def rendezvous_in_a_file(spec: AnyRunSpec) -> Iterator[None]:
    """Let the ranks of an embedded Ray on CPUs meet through a file: torch's TCPStore listens on every address.

    GPUs keep the TCPStore, with which alone NCCL's watchdogs are tested, and so does a run that names a port.
    """
    joins = bool(os.environ.get("RAY_ADDRESS"))
    if joins or spec.device != "cpu" or spec.trainer.master_port is not None or _INIT_METHOD in os.environ:
        yield
        return
    folder = tempfile.mkdtemp(prefix="opd-ranks-")
    os.environ[_INIT_METHOD] = f"file://{folder}/store"
    try:
        yield
    finally:
        del os.environ[_INIT_METHOD]
        shutil.rmtree(folder, ignore_errors=True)
