"""Calls that the driver starts on a rank: one thread, its end, its result, and the uploads of its files."""

import threading
from pathlib import Path

import pytest

from opd.runs.manifest import FileEntry, Manifest
from opd.store.durable import hash_file
from opd.update.shards import ShardUploads, upload_saved

SHARD = "actor/model_world_size_1_rank_0.pt"


def test_a_call_runs_beside_the_rank_until_its_result_is_asked_for():
    rank, may_end = ShardUploads(), threading.Event()
    rank.rank = 3
    assert rank.has_call_ended(), "none was started"
    rank.start_call(lambda rank, word: (may_end.wait(60), rank, word), {"word": "shard"})
    assert not rank.has_call_ended()
    may_end.set()
    assert rank.call_result() == (True, 3, "shard")
    assert rank.call_result() is None


@pytest.fixture
def saved(tmp_path: Path) -> Manifest:
    file = tmp_path / "step" / SHARD
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    size, sha256 = hash_file(file)
    entry = FileEntry(path=SHARD, rank=0, size=size, sha256=sha256)
    return Manifest(step=1, attempt=1, spec_hash="h", files=(entry,))


def test_a_rank_uploads_its_saved_files_and_says_what_hindered_it(tmp_path: Path, saved: Manifest):
    def upload(store: str) -> list[str]:
        return upload_saved(0, step_dir=tmp_path / "step", manifest=saved, store_url=str(tmp_path / store))

    assert upload("store") == []
    assert [path.name for path in (tmp_path / "store").rglob("*.pt")] == [Path(SHARD).name]
    (tmp_path / "a file").write_text("")
    assert len(upload("a file")) == 1
    (tmp_path / "step" / SHARD).write_bytes(b"damaged")
    assert len(upload("another")) == 1
    assert not (tmp_path / "another").exists()
