"""Adapters are drawn from the run's seed, and nothing else is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from opd.worker.engines import _PackedEngine


def test_drawing_adapters_leaves_the_generators_of_this_process_and_of_its_devices_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reset: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", reset.append)
    monkeypatch.setattr(FSDPEngineWithLMHead, "_build_lora_module", lambda self, module: nn.Linear(3, 2))
    engine = object.__new__(_PackedEngine)
    engine.engine_config = SimpleNamespace(seed=7, mixed_precision=None)
    before = torch.random.get_rng_state()
    first, second = (engine._build_lora_module(nn.Identity()).weight for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert reset == []
