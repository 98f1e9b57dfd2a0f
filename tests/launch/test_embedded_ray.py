"""A run without RAY_ADDRESS starts a Ray of its own, next to any other on the machine."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

START = """
import ray
from opd.launch import facts
from opd.main_opd import spec_of
from opd.trainer.entry import compose
from opd.trainer.processes import set_process_environment, start_ray
set_process_environment("cpu")
spec = spec_of(["actor_rollout_ref.model.path=m", "trainer.device=cpu"], {"TEACHER_MODEL_PATH": "t"})
print(start_ray(compose(spec, facts(spec)), num_cpus=3), int(ray.cluster_resources()["CPU"]))
"""


@pytest.mark.slow
def test_a_run_does_not_join_another_one_s_ray_on_the_same_machine():
    # Where Ray notes the address of the cluster that started last; short, since it holds sockets.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder, "ray_current_cluster").write_text("127.0.0.1:1")
        env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | {"RAY_TMPDIR": folder}
        ended = subprocess.run(
            [sys.executable, "-c", START], env=env, capture_output=True, text=True, timeout=200, check=False
        )
    assert "True 3" in ended.stdout, ended.stdout[-2000:] + ended.stderr[-4000:]
