"""vLLM's servers are begun while the models load, launched when these are there, and ended where no start launches them.

Ranks and servers have bodies of ours.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import verl
from omegaconf import OmegaConf
from verl.workers.rollout.replica import RolloutReplicaRegistry

from opd.compat.vllm_servers import begun_beside_models


@pytest.mark.parametrize(("name", "is_disaggregated"), [("cpu", False), ("none", False), ("vllm", True)])
def test_other_rollouts_start_as_they_did(name, is_disaggregated):
    rollout = {"name": name, "disaggregation": {"enabled": is_disaggregated}}
    before, loaded = RolloutReplicaRegistry._registry["vllm"], []
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    with begun_beside_models(config, role="actor_rollout_ref") as load_models:
        load_models(SimpleNamespace(init_model=lambda: loaded.append(True)))
        assert RolloutReplicaRegistry._registry["vllm"] is before
    assert loaded


def test_verl_s_server_still_takes_the_device_in_launch_server_only():
    source = Path(verl.__path__[0], "workers/rollout/vllm_rollout/vllm_async_server.py").read_text()
    begun, launched = source.split("async def launch_server(")
    assert "AsyncLLM.from_vllm_config(" not in begun
    assert "AsyncLLM.from_vllm_config(" in launched
    assert "AsyncLLM(" not in source
