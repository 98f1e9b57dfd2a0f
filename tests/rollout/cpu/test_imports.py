import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_servers_process_loads_neither_verl_nor_ray():
    code = "import sys, opd.rollout.cpu.server; print([name for name in ('verl', 'ray', 'tensordict') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == "[]"
