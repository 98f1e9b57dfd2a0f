"""Identity: a run id stands for one experiment, and a refused start says what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opd.errors import SpecChanged
from opd.runs.identity import describe_changes, settle_identity
from opd.store.base import Store
from opd.store.local import LocalStore


def settle(*stores: Store, spec_hash: str = "h1", identity: dict[str, Any] | None = None) -> None:
    identity = identity or {"model": {"path": "a"}, "seed": 1}
    settle_identity(stores, run_id="r", spec_hash=spec_hash, identity=identity, spec={**identity, "epochs": 3})


def test_the_first_start_stores_the_spec_and_a_later_one_keeps_it(local_store: LocalStore) -> None:
    settle(local_store)
    first = local_store.get("run.json")
    local_store.delete("spec.json")  # a kill between the two files
    settle(local_store)
    assert local_store.get("run.json") == first
    assert local_store.get_json("spec.json") == {"model": {"path": "a"}, "seed": 1, "epochs": 3}


def test_another_hash_is_refused_with_each_difference_on_a_line(local_store: LocalStore) -> None:
    settle(local_store)
    with pytest.raises(SpecChanged) as refused:
        settle(local_store, spec_hash="h2", identity={"model": {"path": "b"}, "lr": 1e-6})
    message = str(refused.value)
    assert "lr: (absent) -> 1e-06\n  model.path: 'a' -> 'b'\n  seed: 1 -> (absent)\n" in message
    assert "another name" in message
    assert refused.value.exit_code == 2


def test_a_name_under_which_nothing_was_trained_is_refused_with_the_commands_that_free_it(
    tmp_path: Path, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    remote = LocalStore(tmp_path / "remote", policy=local_store.policy)
    settle(remote, local_store)
    for name in ("owner.json", "ended.json"):
        remote.put_json(f"attempts/0001/{name}", {})
    with pytest.raises(SpecChanged) as refused:
        settle(remote, local_store, spec_hash="h2")
    assert "nothing was trained under it" in str(refused.value)
    for store in (remote, local_store):
        assert f"`opdctl delete {store.url} --results`" in str(refused.value)
        store.delete_tree("")
    settle(remote, local_store, spec_hash="h2")


@pytest.mark.parametrize(
    "key",
    [
        "checkpoints/global_step_1/COMPLETE",
        "attempts/0001/metrics.jsonl",
        "result.json",
        "attempts/0001/owner.json",
        "stages/r-sft/checkpoints/global_step_1/COMPLETE",
    ],
)
def test_nobody_is_told_to_delete_what_was_trained_or_may_be_alive(
    key: str, local_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    settle(local_store)
    local_store.put(key, b"{}")
    with pytest.raises(SpecChanged) as refused:
        settle(local_store, spec_hash="h2")
    assert "opdctl" not in str(refused.value)


def test_a_refused_start_writes_nowhere(tmp_path: Path, local_store: LocalStore) -> None:
    settle(local_store)
    remote = LocalStore(tmp_path / "remote", policy=local_store.policy)
    with pytest.raises(SpecChanged):
        settle(remote, local_store, spec_hash="h2")
    assert not remote.root.exists()


def test_changes_name_list_items_and_types_and_keep_equal_leaves_out() -> None:
    before = {"sets": ["a", "b"], "beta": 1, "same": {"x": None}}
    after = {"sets": ["a", "c", "d"], "beta": 1.0, "same": {"x": None}}
    assert describe_changes(before, after) == [
        "beta: 1 -> 1.0",
        "sets[1]: 'b' -> 'c'",
        "sets[2]: (absent) -> 'd'",
    ]


class Beaten(LocalStore):
    """Of two first starts at once this one comes second: the other's record is there when it writes its own."""

    def _create(self, key: str, data: bytes) -> None:
        if key == "run.json":
            super()._put(key, data.replace(b"h1", b"h9"))
        super()._create(key, data)


def test_of_two_first_starts_at_once_the_loser_is_refused_if_its_experiment_is_another(tmp_path: Path) -> None:
    with pytest.raises(SpecChanged, match="h9"):
        settle(Beaten(tmp_path))
