"""Weights that rank 0 sends into a model that was sharded without memory, on a CUDA device."""

import torch
from tests.gpu import needs
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from verl.utils.fsdp_utils import fsdp2_load_full_state_dict
from verl.workers.engine.fsdp import transformer_impl

from opd.compat.loading import sharded_before_they_come

needs.devices(1, "weights are kept on a CUDA device")


def test_a_model_has_the_weights_that_it_is_sent_and_computes_with_them(group, monkeypatch):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 4, bias=False)).bfloat16().requires_grad_(False)
    rows, weights = torch.randn(8, 16), model.state_dict()
    expected = model.float()(rows)
    model.bfloat16()

    def shard(module: nn.Sequential, options: dict, config: None) -> None:
        for part in (*module, module):
            fully_shard(part, **options)

    monkeypatch.setattr(transformer_impl, "apply_fsdp2", shard)
    mesh = distributed.init_device_mesh("cuda", (1,))
    with sharded_before_they_come(torch.float32):
        transformer_impl.apply_fsdp2(model, {"mesh": mesh}, None)
        fsdp2_load_full_state_dict(model, dict(weights), mesh, None)  # it puts its own tensors in
    for name, parameter in model.named_parameters():
        assert parameter.device.type == "cuda"
        assert torch.equal(parameter.to_local().cpu(), weights[name].float())
    torch.testing.assert_close(model(rows.cuda()).cpu(), expected, rtol=1e-3, atol=1e-3)
