"""A machine whose Ray has too few CPUs for the run ends the start: exit code 1, the number, and no process left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.test_ray_cleanup import living

SPEC = Path(__file__).parents[1] / "e2e_cpu/specs/opd.yaml"


@pytest.mark.slow
def test_one_cpu_less_than_the_ranks_take_ends_the_run_before_anything_is_placed(tmp_path):
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    env["OPD_TEST_MARK"] = mark = f"{os.getpid()}-too-few-cpus"
    command = [sys.executable, "-m", "opd.launch", str(SPEC), "--", "ray_kwargs.ray_init.num_cpus=2"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr[-3000:]
    needed = "3 CPUs for its ranks"
    assert f"the run needs 1 x {needed}" in done.stdout
    assert f"opd.launch: 0 of 1 nodes with {needed}; too small: " in done.stderr
    assert "1 GPUs, 2 CPUs after" in done.stderr
    assert "starting trainer" not in done.stdout
    assert living(mark) == []
