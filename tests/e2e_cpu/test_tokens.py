"""What the student is trained on is what it said: token by token, in the running trainer."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from tests.e2e_cpu import probe
from tests.e2e_cpu.runs import ROOT, run


def _records(folder, kind):
    return [
        json.loads(line) for path in sorted(folder.glob(f"{kind}.*.jsonl")) for line in path.read_text().splitlines()
    ]


def said_by_the_rollout(rows):
    """(everything before a sampled token, place of the hidden state that predicts it, the token), counted."""
    said = Counter()
    for row in rows:
        asked = len(row["prompts"])
        for k, (token, trained) in enumerate(zip(row["responses"], row["response_mask"], strict=True)):
            if trained:  # the hidden state at asked + k - 1 has read everything before this token
                said[tuple(row["prompts"] + row["responses"][:k]), asked + k - 1, token] += 1
    return said


def read_by_the_student(batches, *, packed=False):
    """The same of the student's forward."""
    read = Counter()
    for batch in batches:
        width = len(batch["input_ids"][0])
        tokens = [token for line in batch["input_ids"] for token in line]
        places = [place for line in batch["position_ids"] for place in line]
        assert all(weight == 1 for weight in batch["token_weights"])
        for position, token in zip(batch["positions"], batch["token_ids"], strict=True):
            start = position - places[position]
            assert start % width == 0 or packed
            read[tuple(tokens[start : position + 1]), places[position], token] += 1
    return read


@pytest.mark.parametrize("remove_padding", ["true", "false"], ids=["packed", "padded"])
def test_tokens_and_masks_of_the_students_forward_are_those_of_the_rollout(tmp_path, monkeypatch, remove_padding):
    monkeypatch.setenv(probe.FOLDER, str(tmp_path))
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", probe.__name__)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    sets = ("trainer.total_steps=2", "trainer.val_before_train=false", f"actor.use_remove_padding={remove_padding}")
    run(tmp_path / "run", "opd", *sets).must_be_clean()

    said = said_by_the_rollout(_records(tmp_path, "rollout"))
    read = read_by_the_student(_records(tmp_path, "student"), packed=remove_padding == "true")
    assert said == read
    assert said.total() > 2 * 16
