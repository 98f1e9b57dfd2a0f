"""The CPU profile works, and each of its changes is still needed: that kind of test fails when verl or torch no longer needs it."""

import inspect
import subprocess
import sys

import pytest
import torch
import torch.distributed
from torch.distributed.fsdp import _fully_shard
from verl.utils import distributed as verl_distributed


def in_fresh_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)


OFFLOADED_FORWARD = """
import torch, torch.distributed, torch.distributed.fsdp
from torch.distributed.fsdp import _fully_shard
{profile}
torch.distributed.init_process_group("{backend}", rank=0, world_size=1, store=torch.distributed.HashStore())
model = torch.nn.Linear(4, 2, bias=False)
weight = model.weight.detach().clone()
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
policy = torch.distributed.fsdp.CPUOffloadPolicy(pin_memory=True)
torch.distributed.fsdp.fully_shard(model, mesh=mesh, offload_policy=policy)
print(isinstance(policy, _fully_shard.CPUOffloadPolicy), torch.allclose(model(torch.ones(1, 4)), weight.sum(1)))
"""


@pytest.mark.slow
def test_with_the_profile_fsdp2_offloads_over_a_backend_named_twice():
    result = in_fresh_process(OFFLOADED_FORWARD.format(profile="import opd.compat.cpu", backend="cpu:gloo,cpu:gloo"))
    assert result.stdout.strip().endswith("True True"), result.stderr


def test_torch_still_refuses_a_backend_named_twice():
    with pytest.raises(ValueError, match="Duplicate device type cpu"):
        torch.distributed.distributed_c10d.BackendConfig("cpu:gloo,cpu:gloo")


def test_verl_still_names_the_cpu_backend_twice_on_a_cpu():
    source = inspect.getsource(verl_distributed.initialize_global_process_group_ray)
    assert 'f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"' in source


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned for this machine's GPU")
def test_torch_still_cannot_offload_with_pinned_memory_on_a_cpu():
    result = in_fresh_process(OFFLOADED_FORWARD.format(profile="", backend="gloo"))
    assert result.returncode != 0
    assert ".pin_memory()" in result.stderr
    assert _fully_shard.CPUOffloadPolicy().pin_memory


def test_verl_still_pins_the_memory_of_forward_only_engines():
    from verl.workers.engine.fsdp import transformer_impl

    assert "CPUOffloadPolicy(pin_memory=True)" in inspect.getsource(transformer_impl.FSDPEngine._build_fsdp_module)


@pytest.mark.slow
def test_naming_the_module_to_verl_sets_everything_up_and_loads_the_rollout_only_when_asked(monkeypatch):
    """In a fresh process, as verl's workers import it."""
    code = """
import os, sys, torch, verl
from verl.plugin.platform import PlatformBase, get_platform
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplicaRegistry
platform = get_platform()
print(sorted(name for name in sys.modules if name.startswith("opd.")))
print(platform.device_name, os.environ["VERL_ENGINE_DEVICE"], torch.zeros(1).to(platform.current_device()).device)
print(isinstance(platform, PlatformBase), platform.ray_resource_options(1))
device = platform.device_module
state, before = device.get_rng_state(), device.memory_allocated()
first, held = torch.rand(3), torch.ones(32 << 20)  # 128 MiB
device.set_rng_state(state)
print(torch.equal(torch.rand(3), first), device.memory_allocated() - before > 100 << 20)
print(0 < before < device.mem_get_info()[1], device.max_memory_allocated() > before)
print(RolloutReplicaRegistry.get("cpu").__name__, get_rollout_class("cpu").__name__)
"""
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "opd.compat.cpu")
    monkeypatch.delenv("VERL_ENGINE_DEVICE", raising=False)
    result = in_fresh_process(code)
    assert result.stdout.splitlines()[-6:] == [
        "['opd.compat', 'opd.compat.cpu']",
        "cpu cuda cpu",
        "True {'num_gpus': 1}",
        "True True",
        "True True",
        "CPURolloutReplica CPUServerAdapter",
    ], result.stderr
