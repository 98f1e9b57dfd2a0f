"""Each patch works, and each is still needed: the second kind of test fails when verl or torch no longer needs it."""

import inspect
import subprocess
import sys

import pytest
import torch
import torch.distributed
from torch.distributed.fsdp import _fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import CPUOffloadPolicy as UnpatchedPolicy
from verl.utils import distributed as verl_distributed

from opd.compat.cpu import patches


def in_fresh_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)


OFFLOADED_FORWARD = """
import torch, torch.distributed, torch.distributed.fsdp
{patch}
torch.distributed.init_process_group("{backend}", rank=0, world_size=1, store=torch.distributed.HashStore())
model = torch.nn.Linear(4, 2, bias=False)
weight = model.weight.detach().clone()
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
policy = torch.distributed.fsdp.CPUOffloadPolicy(pin_memory=True)
torch.distributed.fsdp.fully_shard(model, mesh=mesh, offload_policy=policy)
print(torch.allclose(model(torch.ones(1, 4)), weight.sum(1)))
"""


@pytest.mark.slow
def test_with_the_patches_fsdp2_offloads_over_a_backend_named_twice():
    patch = "from opd.compat.cpu.patches import apply_all; apply_all(); apply_all()"
    result = in_fresh_process(OFFLOADED_FORWARD.format(patch=patch, backend="cpu:gloo,cpu:gloo"))
    assert result.stdout.strip() == "True", result.stderr


def test_torch_still_refuses_a_backend_named_twice():
    with pytest.raises(ValueError, match="Duplicate device type cpu"):
        torch.distributed.distributed_c10d.BackendConfig("cpu:gloo,cpu:gloo")


def test_verl_still_names_the_cpu_backend_twice_on_a_cpu():
    source = inspect.getsource(verl_distributed.initialize_global_process_group_ray)
    assert 'f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"' in source


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned for this machine's GPU")
def test_torch_still_cannot_offload_with_pinned_memory_on_a_cpu():
    result = in_fresh_process(OFFLOADED_FORWARD.format(patch="", backend="gloo"))
    assert result.returncode != 0
    assert ".pin_memory()" in result.stderr
    assert "RuntimeError" in result.stderr


def test_verl_still_pins_the_memory_of_forward_only_engines():
    from verl.workers.engine.fsdp import transformer_impl

    assert "CPUOffloadPolicy(pin_memory=True)" in inspect.getsource(transformer_impl.FSDPEngine._build_fsdp_module)


def test_the_patched_policy_is_still_one_for_torch(monkeypatch):
    monkeypatch.setattr(torch.distributed.fsdp, "CPUOffloadPolicy", UnpatchedPolicy)
    patches.offload_without_pinned_memory()
    policy = torch.distributed.fsdp.CPUOffloadPolicy(pin_memory=True)
    assert isinstance(policy, _fully_shard.CPUOffloadPolicy)
    assert policy.pin_memory is False
