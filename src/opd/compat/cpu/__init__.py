"""The CPU profile: makes verl 0.9.1 run on a machine without an accelerator.

`VERL_USE_EXTERNAL_MODULES=opd.compat.cpu` has verl import this package at the end of `import verl`, in every process of a run.
It sets the platform, applies the patches and registers the rollout named "cpu"; what costs time to import (the replica,
the rollout server, transformers) is named here and loaded by verl's registries when first used.
"""

import importlib
import os
from typing import Any

from verl.plugin.platform import set_platform

from opd.compat.cpu import patches
from opd.compat.cpu.platform import PlatformCPU

ROLLOUT_NAME = "cpu"


def _load_replica() -> type[Any]:
    replica: type[Any] = importlib.import_module("opd.rollout.cpu.replica").CPURolloutReplica
    return replica


def _register_rollout() -> None:
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(ROLLOUT_NAME, _load_replica)
    base._ROLLOUT_REGISTRY[(ROLLOUT_NAME, "async")] = "opd.rollout.cpu.replica.CPUServerAdapter"


set_platform(PlatformCPU())
patches.apply_all()
# verl registers its FSDP engines for cuda and npu only; they run on any torch device, and this is verl's own switch.
os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
_register_rollout()
