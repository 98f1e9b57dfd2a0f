"""A trainer's start up to its rollout servers, on a real Ray with verl's own worker group, replicas and servers' manager.

    python -m tests.compat.vllm_start.program begun 2

`begun`: ranks that have loaded only when their server is up; `failing`: ranks that end with an error once it is up. The number counts
the ranks. Prints a line of JSON. Devices are logical, and vLLM is empty.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any

os.environ["VERL_USE_EXTERNAL_MODULES"] = "opd.compat.cpu"  # must be set before verl is imported

import ray
from omegaconf import OmegaConf
from tests.compat.vllm_start import no_vllm, parts
from tests.processes import is_running
from verl.plugin.platform import get_platform
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import (
    RayClassWithInitArgs,
    RayWorkerGroup,
    ResourcePoolManager,
    create_colocated_worker_cls,
)
from verl.workers.rollout.replica import RolloutReplicaRegistry

from opd.compat.ray_start import patient_start
from opd.compat.vllm_servers import begun_beside_models
from opd.experiment import OpdSpec, parse_tree
from opd.experiment.run_config import RunFacts
from opd.rollout.serving import Servers
from opd.trainer.entry import compose

ROLE = "actor_rollout_ref"


class Rank(Worker):
    """A rank whose models are loaded, or cannot be, once its rollout server is up."""

    def __init__(self, how: str):
        super().__init__()
        self._how = how

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        self._pid = parts.pid_of_server(f"vllm_server_{self.rank}_0")
        if self._how == "failing":
            raise RuntimeError(f"no model, and a server {self._pid}")
        self._loaded_s = time.monotonic()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def pid_of_server(self) -> int:
        return self._pid

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def loaded_s(self) -> float:
        return self._loaded_s

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def device(self) -> str:
        return str(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def update_weights(self) -> None:
        """A coroutine, as verl's worker has: Ray then runs all methods in one event loop."""


def config_of(num_ranks: int) -> Any:
    tree = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}, "trainer": {"gpus_per_node": num_ranks}}
    spec = parse_tree(tree).spec
    assert isinstance(spec, OpdSpec)
    config = compose(spec, RunFacts(run_id="r", run_dir="r", in_ray_cluster=True))
    OmegaConf.resolve(config)
    return config


def start(config: Any, num_ranks: int, how: str, load_models: Any) -> dict[str, Any]:
    """Start ranks and servers in the order of `opd.job.Job`; return what the servers then say."""
    pools = ResourcePoolManager(resource_pool_spec={"global_pool": [num_ranks]}, mapping={ROLE: "global_pool"})
    pools.create_resource_pool()
    pool = pools.get_resource_pool(ROLE)
    of_rank = RayClassWithInitArgs(cls=ray.remote(Rank), how=how)
    group = RayWorkerGroup(
        resource_pool=pool, ray_cls_with_init=create_colocated_worker_cls({ROLE: of_rank}), device_name="cpu"
    )
    ranks = group.spawn(prefix_set={ROLE})[ROLE]
    load_models(ranks)
    manager = Servers.create(config=config, worker_group=ranks, rollout_resource_pool=pool)
    return {
        "servers": ray.get([server.facts.remote() for server in manager.server_handles]),
        "pids": ray.get([server.pid.remote() for server in manager.server_handles]),
        "pids_while_loading": ranks.pid_of_server(),
        "loaded_s": max(ranks.loaded_s()),
        "names": sorted(name for name in ray.util.list_named_actors() if "server" in name),
    }


def wait_for_end(pid: int) -> bool:
    deadline_s = time.monotonic() + parts.TIMEOUT_S
    while is_running(pid):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def play(how: str, num_ranks: int) -> dict[str, Any]:
    config = config_of(num_ranks)
    before = RolloutReplicaRegistry.get("vllm")
    found: dict[str, Any] = {}
    try:
        with begun_beside_models(config, role=ROLE) as load_models:
            found = start(config, num_ranks, how, load_models)
    except ray.exceptions.RayTaskError as error:
        found["error"] = str(error.cause)
    if how == "failing":
        found["has_ended"] = wait_for_end(int(found["error"].rpartition(" ")[2]))
    found["is_as_before"] = before == RolloutReplicaRegistry.get("vllm")
    return found | {"how": how}


def main(how: str, num_ranks: str) -> None:
    no_vllm.install()
    importlib.import_module("verl.workers.rollout.vllm_rollout.vllm_async_server").vLLMHttpServer = parts.Server
    type(get_platform()).rollout_env_vars = lambda self: {"OF_SERVERS": "1"}
    with patient_start():
        ray.init(
            address="local", num_cpus=3 * int(num_ranks) + 4, num_gpus=int(num_ranks), include_dashboard=False,
            object_store_memory=80_000_000,
        )  # fmt: skip
    print(json.dumps(play(how, int(num_ranks))), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
