"""vLLM's servers are begun while the models load, launched when these are there, and ended where no start launches them.

On a real Ray with verl's own worker group, replicas and manager (vllm_start/program.py); only ranks and servers have bodies of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import verl
from omegaconf import OmegaConf
from tests.processes import marked_program
from verl.workers.rollout.replica import RolloutReplicaRegistry

from opd.compat.vllm_servers import begun_beside_models

TIMEOUT_S = 600.0


def play(how: str, num_ranks: int) -> dict[str, Any]:
    """Return what the program found; end all that it started."""
    mark = f"{os.getpid()}-vllm-start-{how}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_AUTH_MODE": "disabled"}
    with marked_program(
        mark, "tests.compat.vllm_start.program", how, str(num_ranks), environment=environment, stderr=subprocess.PIPE
    ) as process:
        out, errors = process.communicate(timeout=TIMEOUT_S)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    assert len(lines) == 1, (out[-3000:], errors[-6000:])
    found: dict[str, Any] = json.loads(lines[0])
    return found


@pytest.fixture(scope="module")
def begun() -> dict[str, Any]:
    return play("begun", 2)


@pytest.fixture(scope="module")
def failing() -> dict[str, Any]:
    return play("failing", 1)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 60)
class TestOnRay:
    def test_a_server_comes_up_while_the_models_load_and_is_the_one_that_is_launched(self, begun):
        # A rank of the program has loaded once its server is up: a start that makes servers afterwards would not come here.
        assert begun["pids"] == begun["pids_while_loading"]
        assert begun["names"] == ["vllm_server_0_0", "vllm_server_1_0"]

    def test_it_is_launched_once_with_all_models_loaded(self, begun):
        for server in begun["servers"]:
            [launched_s] = server["launched_s"]
            assert launched_s > begun["loaded_s"]

    def test_it_is_told_what_verl_tells_it(self, begun):
        for rank, server in enumerate(begun["servers"]):
            facts = ("replica_rank", "node_rank", "gpus_per_node", "nnodes", "mode", "model", "environment")
            assert [server[fact] for fact in facts] == [rank, 0, 1, 1, "hybrid", "m", "1"]
            assert [server["cuda_visible_devices"]] == server["devices_of_ranks"]
        assert len({server["cuda_visible_devices"] for server in begun["servers"]}) == 2

    def test_models_that_cannot_be_loaded_end_the_start_by_their_error_and_the_begun_server_with_it(self, failing):
        assert failing["error"].startswith("no model, and a server")
        assert failing["has_ended"]

    def test_verl_is_as_it_was_afterwards(self, begun, failing):
        assert begun["is_as_before"]
        assert failing["is_as_before"]


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
