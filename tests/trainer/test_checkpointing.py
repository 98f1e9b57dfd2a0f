"""Checkpoints of ranks and driver, each for its own files (nodes with disks of their own: tests/e2e_cpu)."""

import dataclasses
import errno
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray.exceptions import RayActorError

from opd.compat.plain_loads import plain_loads
from opd.errors import CheckpointError, Overtaken
from opd.experiment.sections import Checkpoint
from opd.runs.checkpoints import Checkpoints
from opd.runs.manifest import DRIVER_RANK, RANK_PARTS, Manifest, complete_steps, step_folder
from opd.runs.run import Run
from opd.runs.shards import move_in, sweep_older
from opd.store.base import NO_RETRY
from opd.store.durable import hash_file
from opd.store.remote import open_store
from opd.trainer import checkpointing
from opd.trainer.checkpointing import Sealing
from opd.update.shards import Background, ShardUploads


class Rank(ShardUploads):
    def __init__(self, rank: int, disk: Path | None = None):
        self.rank, self.disk = rank, disk

    def start_call(self, function: Callable, arguments: Mapping[str, Any]) -> None:
        own = {"run_dir": str(self.disk)} if self.disk and "run_dir" in arguments else {}
        super().start_call(function, {**arguments, **own})


class Ranks:
    """The worker group as the driver sees it: every call goes to all ranks, here one after another."""

    def __init__(self, *ranks: ShardUploads):
        self.world_size, self._ranks = len(ranks), ranks

    def __getattr__(self, name: str):
        return lambda **arguments: [getattr(rank, name)(**arguments) for rank in self._ranks]


ONE, TWO = Ranks(Rank(0)), Ranks(Rank(0), Rank(1))


def attempt(folder: Path) -> Run:
    store = folder / "store"
    options = {"store_url": str(store), "tee": False, "policy": NO_RETRY}
    return Run.open(run_id="r", local_root=folder / "out", spec={"a": 1}, spec_hash="h", **options)


def save(run: Run, ranks: Ranks, step: int, keep_last: int | None = None) -> None:
    assert run.checkpoints.begin(step)
    write(run.checkpoints.staged(step), ranks, step)
    checkpointing.seal(run, ranks, step, Checkpoint(keep_last=keep_last))


def saved(folder: Path, ranks: Ranks, *steps: int) -> Ranks:
    """The ranks of a run that has saved these steps and ended."""
    with attempt(folder) as run:
        for step in steps:
            save(run, ranks, step)
    return ranks


def write(folder: Path, ranks: Ranks, step: int) -> None:
    """Write the files of verl's save."""
    (folder / "actor").mkdir(parents=True, exist_ok=True)
    for rank in range(ranks.world_size):
        for part in RANK_PARTS:
            value = {part: torch.tensor([rank, step])}
            torch.save(value, folder / "actor" / f"{part}_world_size_{ranks.world_size}_rank_{rank}.pt")
    torch.save({"_num_yielded": step}, folder / "data.pt")


def test_each_rank_and_the_driver_upload_and_download_their_own_files_at_the_next_start(tmp_path):
    ranks = saved(tmp_path, TWO, 1)
    stored, local = (tmp_path / place / "r" / step_folder(1) for place in ("store", "out"))
    files = {path.relative_to(local).as_posix(): path.read_bytes() for path in local.rglob("*") if path.is_file()}
    shards = [f"actor/{part}_world_size_2_rank_{rank}.pt" for part in RANK_PARTS for rank in range(2)]
    assert sorted(files) == sorted(["COMPLETE", "data.pt", "manifest.json", *shards])
    for lost in (stored, local):
        shutil.rmtree(lost)
        with attempt(tmp_path) as run:
            assert checkpointing.resume(run, ranks, load=lambda folder: None) == 1
        assert {name: (lost / name).read_bytes() for name in files} == files


def test_a_file_that_changed_since_is_not_uploaded_as_if_it_were_the_saved_one(tmp_path, caplog):
    with attempt(tmp_path) as run:
        save(run, TWO, 1)
        save(run, TWO, 2)
        store = open_store(tmp_path / "store").child("r")
        store.delete_tree(step_folder(1))
        (run.checkpoints.folder(1) / "actor" / "model_world_size_2_rank_1.pt").write_bytes(b"damaged")
        checkpointing.upload_missing(run, TWO)
    assert not store.exists(f"{step_folder(1)}/COMPLETE")
    assert "model_world_size_2_rank_1.pt" in caplog.text


class Malice:
    """A pickle that runs code when it is loaded."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def seal_again(run_dir: Path, step: int, name: str) -> None:
    """Write what an intruder in the bucket can write: a manifest that lists the file as it is now, and a marker for it."""
    folder = run_dir / step_folder(step)
    manifest = Manifest.from_bytes((folder / "manifest.json").read_bytes())
    size, sha256 = hash_file(folder / name)
    changed = {name: {"size": size, "sha256": sha256}}
    files = tuple(dataclasses.replace(entry, **changed.get(entry.path, {})) for entry in manifest.files)
    manifest = dataclasses.replace(manifest, files=files)
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    (folder / "COMPLETE").write_bytes(manifest.seal())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data.pt", *(f"actor/{part}_world_size_2_rank_1.pt" for part in RANK_PARTS)])
def test_a_replaced_file_under_a_manifest_sealed_again_runs_no_code(tmp_path, capsys, name):
    ranks, mark = saved(tmp_path, TWO, 1, 2), tmp_path / "ran"
    torch.save({"state": Malice(mark)}, tmp_path / "malice.pt")
    for place in ("out", "store"):
        (tmp_path / place / "r" / step_folder(2) / name).write_bytes((tmp_path / "malice.pt").read_bytes())
        seal_again(tmp_path / place / "r", 2, name)

    def load_as_verl_does(folder):
        with plain_loads():
            for path in folder.rglob("*.pt"):
                torch.load(path, weights_only=False)

    with attempt(tmp_path) as run:
        assert checkpointing.resume(run, ranks, load_as_verl_does) == 1
    assert not mark.exists()
    assert f"{name} cannot be loaded as plain data" in capsys.readouterr().out
    torch.load(tmp_path / "malice.pt", weights_only=False)
    assert mark.exists(), "the pickle works"


def test_a_step_that_cannot_be_loaded_is_passed_over_for_the_one_before(tmp_path, capsys):
    ranks = saved(tmp_path, TWO, 1, 2)

    def load(folder):
        if folder.name.endswith("_2"):
            raise RuntimeError("size mismatch for lm_head")

    with attempt(tmp_path) as run:
        assert checkpointing.resume(run, ranks, load) == 1
        assert "passed over: global_step_2: it cannot be loaded: RuntimeError: size mismatch" in capsys.readouterr().out


def test_a_file_that_goes_bad_after_its_hash_is_brought_from_the_store_before_a_step_is_given_up(tmp_path):
    ranks = saved(tmp_path, ONE, 1, 2)
    goes_bad = [tmp_path / "out" / "r" / step_folder(2) / "data.pt"]

    def load(folder):
        while goes_bad:
            goes_bad.pop().write_bytes(b"damaged")
        torch.load(folder / "data.pt", weights_only=True)

    with attempt(tmp_path) as run:
        assert checkpointing.resume(run, ranks, load) == 2


@pytest.mark.parametrize(
    ("fault", "steps", "num_loads"),
    [
        (RayActorError(), (1, 2), 1),
        (OSError(errno.EIO, "Input/output error"), (1, 2), 1),
        # Without an older step the run ends instead of training half loaded weights.
        (RuntimeError("size mismatch for lm_head"), (1,), 2),
    ],
    ids=["worker", "disk", "the only step"],
)
def test_a_fault_that_another_step_does_not_mend_ends_the_run(tmp_path, fault, steps, num_loads):
    ranks, loads = saved(tmp_path, ONE, *steps), []

    def load(folder):
        loads.append(folder)
        if len(loads) <= num_loads:
            raise fault

    with attempt(tmp_path) as run, pytest.raises(type(fault)):
        checkpointing.resume(run, ranks, load)
    assert len(loads) == num_loads


def test_retention_deletes_on_disks_that_the_driver_does_not_see(tmp_path):
    disks = [tmp_path / "disk-0", tmp_path / "disk-1"]
    ranks = Ranks(*(Rank(rank, disk) for rank, disk in enumerate(disks)))
    with attempt(tmp_path) as run:
        for step in (1, 2, 3):
            for disk in disks:
                (disk / step_folder(step)).mkdir(parents=True)
            save(run, ranks, step, keep_last=1)
    for disk in disks:
        assert [path.name for path in (disk / "checkpoints").iterdir()] == ["global_step_3"]


def overtaking(run: Run) -> SimpleNamespace:
    """Return a second attempt that shares the disk and the store, as `seal` sees it."""
    owner = {"attempt": 2, "token": "second", "started_at_s": 0.0, "lease_ttl_s": 600.0, "spec_hash": "h"}
    process = {"host": "a", "boot_id": "b", "pid_namespace": "n", "pid": 1, "start": "1"}
    for place in run.stores:
        place.put_json("attempts/0002/owner.json", {**owner, "process": process})
    checkpoints = Checkpoints(local=run.local, remote=run.remote, attempt=2, spec_hash="h")
    return SimpleNamespace(checkpoints=checkpoints, local=run.local)


def test_who_wakes_up_within_verl_s_save_writes_over_nothing_that_its_successor_sealed_on_the_same_disk(tmp_path):
    with attempt(tmp_path) as run:
        assert run.checkpoints.begin(1)
        successor = overtaking(run)
        save(successor, TWO, 1)
        folder = successor.checkpoints.folder(1)
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        write(run.checkpoints.staged(1), TWO, step=99)  # it continues where it was stopped
        with pytest.raises(Overtaken):
            checkpointing.seal(run, TWO, 1, Checkpoint())
        # Stopped once more, after its look for another owner.
        with pytest.raises(CheckpointError, match="was sealed by another attempt"):
            move_in(run.checkpoints.staged(1), run.checkpoints.folder(1), rank=DRIVER_RANK)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        chosen = successor.checkpoints.choose(lambda manifest, url: [])
        assert (chosen.step, chosen.source) == (1, "local")


def test_what_a_killed_save_left_on_a_disk_goes_with_the_next_save_there(tmp_path):
    with attempt(tmp_path) as run:
        write(run.checkpoints.staged(1), ONE, 1)
        killed = run.checkpoints.staged(1).parent
    with attempt(tmp_path) as run:
        save(run, ONE, 1)
        assert not killed.exists()
        assert not run.checkpoints.staged(1).parent.exists(), "the sealed step's files have moved"
        later = run.checkpoints.staged(1).parent.with_name(".saving-0003")
        write(later / "global_step_2", ONE, 2)
        sweep_older(run.checkpoints.staged(1).parent)
        assert (later / "global_step_2" / "data.pt").exists(), "a successor's save is left alone"


@pytest.fixture
def beside(tmp_path) -> Iterator[tuple[Run, Sealing, threading.Event, list[Exception]]]:
    """A run whose step 1 is on its way to its seal: at the event its files are written, or an error is raised."""
    may_write, errors, sealing, rank = threading.Event(), list[Exception](), Sealing(), Rank(0)
    with attempt(tmp_path) as run:

        def late() -> None:
            may_write.wait()
            for error in errors:
                raise error
            write(run.checkpoints.staged(1), ONE, 1)

        assert run.checkpoints.begin(1)
        rank._job = Background(late, name="write")
        sealing.begin(1, lambda: checkpointing.seal(run, Ranks(rank), 1, Checkpoint()))
        yield run, sealing, may_write, errors
        may_write.set()
        # A thread that outlived its test would meet what the next one puts in the place of parts of this module.
        sealing.wait(60)
        assert not sealing.is_running


def test_a_step_is_sealed_once_its_files_are_written_while_the_trainer_goes_on(beside):
    run, sealing, may_write, _ = beside
    assert sealing.wait(0.0) is None
    assert complete_steps(run.stores) == []
    may_write.set()
    assert sealing.wait() == 1
    assert complete_steps(run.stores) == [1]
    assert sealing.wait() is None, "the end is returned once"


def test_a_save_that_fails_on_its_thread_fails_where_the_trainer_looks_and_is_not_sealed(beside):
    run, sealing, may_write, errors = beside
    errors.append(OSError(errno.ENOSPC, "No space left on device"))
    may_write.set()
    with pytest.raises(OSError, match="No space left"):
        sealing.wait()
    assert complete_steps(run.stores) == []


def test_who_fails_leaves_a_save_that_takes_too_long_unsealed_and_says_so(beside, caplog):
    run, sealing, *_ = beside
    sealing.leave(patience_s=0.0)
    assert "global_step_1 is not sealed: its save did not end within 0 s" in caplog.text
    assert complete_steps(run.stores) == []
