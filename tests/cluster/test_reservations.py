"""The CPUs that verl 0.9.1 reserves are those that the needs of a run are derived from."""

import importlib.util
import inspect
import re
from pathlib import Path

from verl.single_controller.ray import ResourcePoolManager
from verl.single_controller.ray.base import RayResourcePool

from opd.experiment.pipeline import RANK_CPUS

VERL = Path(importlib.util.find_spec("verl").submodule_search_locations[0])


def test_a_rank_s_bundle_holds_as_many_cpus_as_verl_colocates_worker_groups():
    assert ResourcePoolManager(resource_pool_spec={}, mapping={}).max_colocate_count == RANK_CPUS
    assert '{"CPU": self.max_colocate_count}' in inspect.getsource(RayResourcePool.get_placement_groups)


def test_vllm_s_servers_name_no_resources():
    source = (VERL / "workers/rollout/vllm_rollout/vllm_async_server.py").read_text()
    assert ".options(" in source
    assert not re.search(r"num_cpus\s*=|num_gpus\s*=", source)
