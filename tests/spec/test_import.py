"""Importing the spec is light, so that the tool, CI and `--dry-run` start at once."""

import json
import subprocess
import sys

CHILD = """
import json, sys, time
start = time.perf_counter()
import opd.spec
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules)}))
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


def test_importing_the_spec_takes_well_under_a_second():
    # 0.13 s on an idle core; the best of five keeps a busy machine from failing the test.
    assert min(run_child(CHILD)["seconds"] for _ in range(5)) < 0.6


def test_loading_a_spec_and_its_overrides_loads_nothing_heavy():
    code = """
import json, sys
from opd.overrides import RunFacts, compute_overrides
from opd.spec import json_schema, load_text, spec_hash
spec = load_text("kind: opd\\nmodel: {path: m}\\nteacher: {path: t}\\n").spec
compute_overrides(spec, run=RunFacts(run_id="a", run_dir="b")), spec_hash(spec), json_schema("opd")
print(json.dumps({"modules": sorted(sys.modules)}))
"""
    assert not HEAVY & set(run_child(code)["modules"])
