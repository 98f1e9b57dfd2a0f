"""The front door rejects an attention kernel that is not installed."""

import pytest

from opd.experiment import parse_tree
from opd.inputs import model_files
from opd.launch import facts
from opd.trainer.entry import run

GRPO = {"kind": "grpo", "model": {"path": "m"}}


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
