"""The machine after a cluster: settings and cgroups as before, no other user's touched."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.cluster import host, lifecycle


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Folders in the place of /proc/sys and of cgroup v1's controllers."""
    for name, value in {"vm/overcommit_memory": "0", "kernel/panic": "1"}.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(f"{value}\n")
    (tmp_path / "cgroup" / "memory" / "others").mkdir(parents=True)
    monkeypatch.setattr(host, "_SYS", tmp_path / "sys")
    monkeypatch.setattr(host, "_CGROUPS", tmp_path / "cgroup")
    return tmp_path


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("OPD_CLUSTER_DIR", str(tmp_path / "cluster"))
    return tmp_path / "cluster"


def test_changed_settings_and_pod_cgroups_are_put_back_and_the_rest_is_left(machine):
    before = host.snapshot()
    (machine / "sys/vm/overcommit_memory").write_text("1\n")
    (machine / "cgroup/memory/kubepods/burstable/pod1").mkdir(parents=True)
    changes = host.restore(before)
    assert changes == ["sysctl vm.overcommit_memory = 0", f"cgroup {machine}/cgroup/memory/kubepods"]
    assert host.snapshot() == before
    assert [path.name for path in (machine / "cgroup/memory").iterdir()] == ["others"]
    assert host.restore(before) == []


def test_the_first_process_is_ended_and_its_folder_removed(place, machine):
    place.mkdir()
    first = subprocess.Popen(["sleep", "60"])
    started = Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[19]
    (place / "state.json").write_text(json.dumps({"pid": first.pid, "started": started, "baseline": host.snapshot()}))
    with ThreadPoolExecutor(1) as pool:
        down = pool.submit(lifecycle.down, print)
        assert first.wait(60) == -15  # only its parent, this process, can reap it, and `down` waits for that
        assert down.result(60) is True
    assert not place.exists()


def test_without_root_the_reason_is_named(place, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(lifecycle.ClusterError, match="need root"):
        lifecycle.up(print)
