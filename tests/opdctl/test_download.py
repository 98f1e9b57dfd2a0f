"""Downloads stay inside their folder for every name in a store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from opd.store.base import ObjectInfo
from opd.store.local import LocalStore
from opdctl.commands.pull import pull_checkpoint, pull_folder
from opdctl.console import ToolError
from opdctl.runs.find import RunPlace

from .test_store_commands import seal_checkpoint


class Hostile(LocalStore):
    """Its listing holds one more object, whose name is the test's."""

    key = ""

    def _list(self, prefix: str) -> list[ObjectInfo]:
        return [*super()._list(prefix), ObjectInfo(key=self.key, size=4, modified_s=0.0)]

    def _get_file(self, key: str, path: Path) -> None:
        path.write_bytes(b"evil")


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/tmp/outside-of-all", ".."])
def test_pull_writes_nothing_where_an_object_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    store = Hostile(tmp_path / "store")
    store.put("eval/good", b"good")
    store.key = f"eval/{name}"
    with pytest.raises(ToolError, match="would be written outside"):
        pull_folder(RunPlace(run_id="r", store=store), "eval", tmp_path / "into" / "here")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("folder", ["../other", "eval/../../other", ".."])
def test_pull_does_not_leave_the_run(tmp_path: Path, folder: str) -> None:
    LocalStore(tmp_path / "store").put("other/eval/secret", b"another run's")
    place = RunPlace(run_id="r", store=LocalStore(tmp_path / "store" / "r"))
    with pytest.raises(ToolError, match="not inside the run r"):
        pull_folder(place, folder, tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_a_checkpoint_that_retention_takes_meanwhile_is_not_called_damaged(tmp_path: Path) -> None:
    class Pruned(LocalStore):
        def _get_file(self, key: str, path: Path) -> None:
            shutil.rmtree(tmp_path / "store" / "checkpoints")
            super()._get_file(key, path)

    seal_checkpoint(tmp_path / "store", 10, {"a": b"1", "b": b"2"})
    with pytest.raises(ToolError, match="global_step_10 of r was pruned meanwhile"):
        pull_checkpoint(RunPlace(run_id="r", store=Pruned(tmp_path / "store")), 10, tmp_path / "into")
