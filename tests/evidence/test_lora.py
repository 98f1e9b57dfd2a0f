"""The study of LoRA students: what is trained, that the frozen rest stays, and that the share is told from gains paired by seed."""

from __future__ import annotations

import pytest
import torch
from tests.evidence import additions, lora
from tests.evidence.lora import Result
from transformers import Qwen3ForCausalLM

from opd.data.toy import STUDENT_DIR


def test_adapters_are_all_that_trains_and_begin_as_the_student():
    plain, student = Qwen3ForCausalLM.from_pretrained(STUDENT_DIR), lora.make_student(4, seed=3)
    trained = {name for name, parameter in student.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(".lora_" in name for name in trained)
    assert not any("lm_head" in name or "embed" in name for name in trained)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(student(input_ids=ids).logits, plain(input_ids=ids).logits)
    assert all(parameter.requires_grad for parameter in lora.make_student(0, seed=3).parameters())


def test_a_run_trains_as_many_weights_as_its_cell_says(monkeypatch):
    monkeypatch.setattr(additions, "NUM_UPDATES", 3)
    monkeypatch.setattr(lora, "share_right", lambda *_, seed: 0.25)
    found = lora.run("lora_8", seed=3)
    assert (found.before, found.after, found.gain, found.num_trained) == (0.25, 0.25, 0.0, 30720)


def test_the_share_is_compared_with_the_full_runs_gain_of_the_same_seed():
    gains = {"full": (0.5, 0.4), "lora_8": (0.5, 0.39), "lora_1": (0.1, 0.2)}
    results = [
        Result(cell=cell, seed=seed, before=0.3, after=0.3 + gain, num_trained=1)
        for cell, of in gains.items()
        for seed, gain in enumerate(of, start=1)
    ]
    found = lora.beyond(results, "lora_8")
    assert found.mean == pytest.approx((50 - 0.95 * 50 + 39 - 0.95 * 40) / 2)
    assert "| `lora_8` (primary) | first 2 | 0.989 |" in lora.table(results)


def test_seeds_that_were_added_later_stand_beside_the_first_ones():
    results = [
        Result(cell=cell, seed=seed, before=0.3, after=0.3 + 0.5 * (factor if seed > 5 else 1), num_trained=1)
        for cell, factor in {"full": 1.0, "lora_8": 0.8, "lora_1": 1.0}.items()
        for seed in range(1, 11)
    ]
    table = lora.table(results)
    for text in ("first 5 | 1.000 | 2.5 ± 0.0", "added 5 | 0.800 | -7.5 ± 0.0", "all 10 | 0.900 | -2.5 ± 1.7"):
        assert f"| `lora_8` (primary) | {text} |" in table
