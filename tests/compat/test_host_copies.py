"""Copies of verl's saves: written later, with the bytes of the save, in memory that is taken once."""

import inspect
from pathlib import Path

import pytest
import torch
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

from opd.compat import host_copies
from opd.compat.host_copies import HostCopies

GIB = 2**30


def later(taker: HostCopies, **saved: object) -> list:
    """Saves each value under `NAME`; what is left to write."""
    with taker.taken() as writes:
        for name, value in saved.items():
            torch.save(value, name)
    return writes


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(host_copies, "free_bytes", lambda: GIB)
    return tmp_path


def test_verls_save_still_writes_by_torch_save_within_the_call():
    assert "torch.save(model_state_dict, model_path)" in inspect.getsource(FSDPCheckpointManager.save_checkpoint)


def test_a_file_holds_what_there_was_when_it_was_saved(folder):
    weight = torch.arange(6.0).reshape(2, 3)
    writes = later(HostCopies(), model={"weight": weight, "row": weight[1], "step": 3, "list": [(1, "a")]})
    weight.zero_()
    assert list(folder.iterdir()) == []
    for write in writes:
        write()
    found = torch.load(folder / "model", weights_only=True)
    assert torch.equal(found["weight"], torch.arange(6.0).reshape(2, 3))
    assert torch.equal(found["row"], torch.tensor([3.0, 4.0, 5.0]))
    assert found["row"].untyped_storage().data_ptr() == found["weight"].untyped_storage().data_ptr(), "once in the file"
    assert (found["step"], found["list"]) == (3, [(1, "a")])


def test_the_next_save_takes_no_more_memory_though_the_storages_are_new(folder, monkeypatch):
    room = [GIB, 0]  # for one look
    monkeypatch.setattr(host_copies, "free_bytes", lambda: room.pop(0))
    taker = HostCopies()
    for value in (1.0, 2.0):
        for write in later(taker, model=torch.full((1000,), value)):
            write()
        assert torch.load(folder / "model", weights_only=True)[0] == value
    assert room == [0], "the second save found its place"


def test_a_file_for_which_there_is_no_memory_is_written_at_once_and_a_line_says_so(folder, monkeypatch, caplog):
    monkeypatch.setattr(host_copies, "free_bytes", lambda: 1000)
    taker = HostCopies()
    assert len(later(taker, small=torch.ones(10), large=torch.ones(1000), extra=torch.ones(1))) == 2
    assert torch.equal(torch.load(folder / "large", weights_only=True), torch.ones(1000))
    assert [path.name for path in folder.iterdir()] == ["large"]
    (record,) = caplog.records
    assert "no host memory for the copy of a checkpoint" in record.message
    assert "large is written within the step" in record.message
