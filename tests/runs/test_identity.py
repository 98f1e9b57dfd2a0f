"""Identity: a run id belongs to one experiment, and a refused start says what differs."""

from pathlib import Path
from typing import Any

import pytest

from opd.errors import SpecChanged
from opd.runs.identity import describe_changes, settle_identity
from opd.store.base import Store
from opd.store.local import LocalStore


def settle(
    *stores: Store, spec_hash: str = "h1", identity: dict[str, Any] | None = None, is_claimed: bool = True
) -> None:
    identity = identity or {"model": {"path": "a"}, "seed": 1}
    more = {"identity": identity, "spec": {**identity, "epochs": 3}, "is_claimed": is_claimed}
    settle_identity(stores, run_id="r", spec_hash=spec_hash, **more)


def test_the_first_start_stores_the_spec_and_a_later_one_keeps_it(local_store: LocalStore) -> None:
    settle(local_store)
    first = local_store.get("run.json")
    local_store.delete("run.json")  # a kill between the two files
    settle(local_store)
    assert local_store.get("run.json") == first
    assert local_store.get_json("spec.json") == {"model": {"path": "a"}, "seed": 1, "epochs": 3}


def test_another_hash_is_refused_with_each_difference_and_the_ways_out_and_writes_nowhere(
    tmp_path: Path, local_store: LocalStore
) -> None:
    settle(local_store)
    local_store.put("attempts/0001/metrics.jsonl", b"{}\n")
    remote = LocalStore(tmp_path / "remote", policy=local_store.policy)
    with pytest.raises(SpecChanged) as refused:
        settle(remote, local_store, spec_hash="h2", identity={"model": {"path": "b"}, "lr": 1e-6})
    message = str(refused.value)
    assert "lr: (absent) -> 1e-06\n  model.path: 'a' -> 'b'\n  seed: 1 -> (absent)\n" in message
    assert "Choose another name (`--name NAME`, or the key `name`)" in message
    assert f"`opdctl delete {local_store.url} --results --yes`" in message
    assert refused.value.exit_code == 2
    assert not remote.root.exists()


def test_a_name_under_which_nothing_was_trained_goes_to_the_attempt_that_claims_it(local_store: LocalStore) -> None:
    settle(local_store)
    for name in ("attempts/0001/owner.json", "starts/r-x7k2p/0001.json", "data/train.parquet"):
        local_store.put(name, b"{}")
    settle(local_store, spec_hash="h2", is_claimed=False)
    assert local_store.get_json("run.json")["spec_hash"] == "h1"
    settle(local_store, spec_hash="h2", identity={"seed": 2})
    assert local_store.get_json("run.json")["spec_hash"] == "h2"
    assert local_store.get_json("spec.json") == {"seed": 2, "epochs": 3}


def test_changes_name_list_items_and_types_and_keep_equal_leaves_out() -> None:
    before = {"sets": ["a", "b"], "beta": 1, "same": {"x": None}}
    after = {"sets": ["a", "c", "d"], "beta": 1.0, "same": {"x": None}}
    assert describe_changes(before, after) == ["beta: 1 -> 1.0", "sets[1]: 'b' -> 'c'", "sets[2]: (absent) -> 'd'"]
