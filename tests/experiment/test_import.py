"""Loading a spec is light, so that the tool, CI and `--dry-run` start at once."""

import json
import subprocess
import sys

HEAVY = {"torch", "verl", "ray", "transformers", "tensordict", "numpy", "pandas", "pyarrow", "hydra", "omegaconf",
         "kubernetes"}  # fmt: skip
CODE = """
import json, sys
from opd.experiment.run_config import RunFacts
from opd.experiment.verl import compute_overrides
from opd.experiment import load_text, spec_hash
spec = load_text("kind: opd\\nmodel: {path: m}\\nteacher: {path: t}\\n").spec
compute_overrides(spec, run=RunFacts(run_id="a", run_dir="b")), spec_hash(spec)
print(json.dumps(sorted(sys.modules)))
"""


def test_loading_a_spec_and_its_overrides_loads_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True)
    assert not HEAVY & set(json.loads(done.stdout))
