"""One cluster a machine: who wants it while another process holds it is told who that is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.cluster import lifecycle

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_cluster_down_beside_a_running_e2e_says_who_holds_the_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("OPD_CLUSTER_DIR", str(tmp_path / "cluster"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools"), str(ROOT / "src")])}
    with lifecycle.held("make e2e"):
        (tmp_path / "cluster").mkdir()
        words = [sys.executable, "-m", "tests.e2e.cluster", "down"]
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert f"held by make e2e (process {os.getpid()})" in done.stderr
        assert (tmp_path / "cluster").exists()
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "the cluster is gone\n")


def test_a_holder_that_is_gone_holds_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("OPD_CLUSTER_DIR", str(tmp_path / "cluster"))
    with lifecycle.held("make e2e"), pytest.raises(lifecycle.ClusterError), lifecycle.held("make cluster"):
        pass
    with lifecycle.held("make cluster"):
        pass
