"""Importing the spec is light, so that the tool, CI and `--dry-run` start at once."""

import json
import subprocess
import sys

CHILD = """
import json, sys
import opd.config
print(json.dumps({"modules": sorted(sys.modules)}))
"""
HEAVY = {
    "torch",
    "verl",
    "ray",
    "transformers",
    "tensordict",
    "numpy",
    "pandas",
    "pyarrow",
    "hydra",
    "omegaconf",
    "kubernetes",
}


def run_child(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_importing_the_spec_loads_nothing_heavy():
    assert not HEAVY & set(run_child(CHILD)["modules"])


def test_loading_a_spec_and_its_overrides_loads_nothing_heavy():
    code = """
import json, sys
from opd.config.run_config import RunFacts
from opd.config.verl import compute_overrides
from opd.config import load_text, spec_hash
spec = load_text("kind: opd\\nmodel: {path: m}\\nteacher: {path: t}\\n").spec
compute_overrides(spec, run=RunFacts(run_id="a", run_dir="b")), spec_hash(spec)
print(json.dumps({"modules": sorted(sys.modules)}))
"""
    assert not HEAVY & set(run_child(code)["modules"])
