"""Compiled decoder layers: what must not make torch give them up."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from opd.update.backbone import compile_layers
from opd.update.engines import StudentEngine

DEFAULT_LIMIT = 8


class Layer(nn.Module):
    """Has a compiled form for each `mode`, as a decoder layer has for each of its uses."""

    def forward(self, hidden: torch.Tensor, mode: str) -> torch.Tensor:
        return hidden * len(mode)


class Model(nn.Module):
    _no_split_modules = ("Layer",)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])


@pytest.fixture
def eager_backend(monkeypatch):
    """torch.compile without a code generator: what is captured and when is as ever."""
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled(function, backend="eager", **options))
    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=DEFAULT_LIMIT, fail_on_recompile_limit_hit=True):
        yield
    torch.compiler.reset()


@pytest.mark.slow
def test_a_layer_stays_compiled_in_more_forms_than_torchs_default_allows(eager_backend):
    model = Model()
    assert compile_layers(model) == 2
    for length in range(1, DEFAULT_LIMIT + 4):
        for layer in model.layers:
            assert torch.equal(layer(torch.ones(3), "m" * length), torch.full((3,), float(length)))


def test_positions_reach_the_layers_as_no_view_of_other_ranks_tokens(monkeypatch):
    # A layer compiled for a view is compiled again for each shape and offset of what is viewed.
    whole = torch.arange(10)[None]
    own = {"input_ids": whole[:, 5:], "position_ids": whole[:, 5:]}
    monkeypatch.setattr(FSDPEngineWithLMHead, "prepare_model_inputs", lambda self, micro_batch: (dict(own), {}))
    engine = object.__new__(StudentEngine)  # the method alone: an engine needs a process group and a model
    engine.use_remove_padding = False
    rows = torch.nested.as_nested_tensor([torch.arange(4), torch.arange(6)], layout=torch.jagged)
    inputs, _ = engine.prepare_model_inputs({"input_ids": rows})
    assert own["position_ids"]._base is not None
    assert inputs["position_ids"]._base is None
    assert inputs["position_ids"].tolist() == [[5, 6, 7, 8, 9]]
