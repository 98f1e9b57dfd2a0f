"""A checkpoint that retention deletes during its download."""

import shutil
from pathlib import Path

import pytest

from opd.store.local import LocalStore
from opdctl.commands.pull import pull_checkpoint
from opdctl.console import ToolError
from opdctl.runs.find import RunPlace

from .test_store_commands import seal_checkpoint


def test_a_checkpoint_that_retention_takes_meanwhile_is_not_called_damaged(tmp_path: Path) -> None:
    class Pruned(LocalStore):
        def _get_file(self, key: str, path: Path) -> None:
            shutil.rmtree(tmp_path / "store" / "checkpoints")
            super()._get_file(key, path)

    seal_checkpoint(tmp_path / "store", 10, {"a": b"1", "b": b"2"})
    with pytest.raises(ToolError, match="global_step_10 of r was pruned meanwhile"):
        pull_checkpoint(RunPlace(run_id="r", store=Pruned(tmp_path / "store")), 10, tmp_path / "into")
