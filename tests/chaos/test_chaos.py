"""One scenario of `make chaos`, and the comparison of runs, which must be able to fail."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.chaos.compare import Places, differences
from tests.chaos.context import Context, Shared
from tests.chaos.kills import kill_before_result

from opd.runs.checkpoints import Checkpoints
from opd.runs.manifest import DRIVER_RANK
from opd.runs.shards import upload_shards
from opd.store.local import LocalStore


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    shared = Shared(folder=tmp_path_factory.mktemp("chaos"), seed=1, say=print)
    yield shared
    shared.end()


@pytest.mark.e2e
@pytest.mark.timeout(1200)
def test_a_broken_run_ends_as_promised(shared: Shared, tmp_path: Path) -> None:
    context = Context(folder=tmp_path, shared=shared)
    try:
        kill_before_result(context)
    finally:
        context.end()


# ---- the harness itself -------------------------------------------------------------------------------------------


def finished_run(
    folder: Path, *, weight: float = 1.0, steps: tuple[int, ...] = (1, 2), loss: float = 0.5, seconds: float = 1.0
) -> Places:
    """Write the files of a finished run, in small."""
    local, store = LocalStore(folder / "local"), LocalStore(folder / "store")
    for place in (local, store):
        claim = {"attempt": 1, "token": "t", "started_at_s": 0.0, "lease_ttl_s": 60.0, "spec_hash": "h"}
        place.put_json("attempts/0001/owner.json", {**claim, "host": "a", "boot_id": "b", "pid": 1})
    measured = {"time": seconds, "timing_s/step": seconds, "agent/tool/get_price/seconds_max": seconds}
    rows = [{"step": step, **measured, "opd/loss": loss} for step in steps]
    store.put("attempts/0001/metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    checkpoints = Checkpoints(local=local, remote=store, attempt=1, spec_hash="h")
    checkpoints.begin(2)
    actor = checkpoints.folder(2) / "actor"
    actor.mkdir(parents=True)
    torch.save({"layer": torch.full((3,), weight), "step": [2]}, actor / "model_world_size_1_rank_0.pt")
    for part in ("optim", "extra_state"):
        torch.save({"state": {}}, actor / f"{part}_world_size_1_rank_0.pt")
    torch.save({"_num_yielded": 2}, checkpoints.folder(2) / "data.pt")
    (actor / "fsdp_config.json").write_text("{}")
    reports = [
        upload_shards(rank=rank, step=2, step_dir=checkpoints.folder(2), store_url=store.url)
        for rank in (DRIVER_RANK, 0)
    ]
    checkpoints.finalise(2, reports)
    store.put_json("result.json", {"attempt": 1, "finished_at_s": seconds, "run_id": "r", "steps": 2})
    return Places(local=local, store=store)


def test_two_runs_that_differ_in_times_only_are_equal(tmp_path: Path) -> None:
    one, other = finished_run(tmp_path / "one"), finished_run(tmp_path / "other", seconds=2.0)
    assert differences(one, other, num_starts=1) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"weight": 1.0 + 2**-23}, "model_world_size_1_rank_0.pt['layer']: another tensor"),
        ({"steps": (1,)}, "metrics: steps [1]"),
        ({"steps": (1, 2, 3)}, "metrics: steps [1, 2, 3]"),
        ({"loss": 0.25}, "metrics of step 1: opd/loss is 0.25, was 0.5"),
    ],
)
def test_a_difference_of_one_bit_or_one_step_is_found(tmp_path: Path, change: dict, found: str) -> None:
    lines = differences(finished_run(tmp_path / "one"), finished_run(tmp_path / "other", **change), num_starts=1)
    assert any(found in line for line in lines), lines


def test_what_is_missing_in_the_store_is_found(tmp_path: Path) -> None:
    one, other = finished_run(tmp_path / "one"), finished_run(tmp_path / "other")
    other.store.delete("result.json")
    other.store.delete("checkpoints/global_step_2/COMPLETE")
    other.store.put("attempts/0003/owner.json", b"{}")
    lines = differences(one, other, num_starts=1)
    for found in (
        "result.json is missing",
        "global_step_2 is not complete on the store",
        "attempts [1, 3] of 1 starts",
    ):
        assert any(found in line for line in lines), lines
