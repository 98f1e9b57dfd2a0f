"""The rewards package is light by itself."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_scoring_with_verls_scorers_imports_neither_verl_nor_torch_nor_ray():
    program = (
        "import sys; from opd.rewards import compute_score\n"
        "for function in ('exact_match', 'math_reward', 'math_dapo', 'math_verify'):\n"
        "    assert compute_score('x', 'Answer: $42$', '42', function=function, timeout_s=60)['failed'] == 0\n"
        "print([name for name in ('verl', 'torch', 'ray', 'math_verify', 'sympy') if name in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout.strip() == "[]"
