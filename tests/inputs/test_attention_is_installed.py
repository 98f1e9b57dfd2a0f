"""Attention kernels that are not installed are refused at the front door, and nothing that is shipped asks for one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from opd.config import parse_tree
from opd.inputs import model_files
from opd.launch import facts
from opd.trainer.entry import run

GRPO = {"kind": "grpo", "model": {"path": "m"}}


@pytest.mark.parametrize("path", sorted(Path("manifests/experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_experiment_asks_for_a_kernel_that_the_lock_has(path):
    model = yaml.safe_load(path.read_text()).get("model", {})  # the file itself: one with a matrix is many specs
    assert model.get("attn_implementation") in (None, "varlen", "sdpa")


@pytest.mark.parametrize("kind", ["grpo", "eval"])
def test_ranks_that_share_sequences_get_a_kernel_that_the_lock_has_by_default(kind):
    spec = parse_tree(GRPO | {"kind": kind, "actor": {"ulysses_sequence_parallel_size": 2}}).spec
    assert spec.model.attn_implementation == "varlen"


@pytest.mark.usefixtures("own_environment")
def test_a_kernel_that_is_not_installed_ends_the_run_with_2_before_its_name_is_claimed(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(model_files._KERNELS, "flash_attention_2", ("a_package_that_nobody_has",))
    model = GRPO["model"] | {"attn_implementation": "flash_attention_2"}
    spec = parse_tree(GRPO | {"model": model, "output": {"root": str(tmp_path)}}).spec
    assert run(spec, facts(spec)) == 2
    said = capsys.readouterr().err
    assert (
        'model.attn_implementation\n    value: "flash_attention_2"\n    rule:  its kernel is in the package a_' in said
    )
    assert "fix:   remove the key" in said
    assert not list(tmp_path.iterdir())
