"""The quickstart as a user starts it: the student really learns, with any seed."""

import json
import subprocess
import sys

import pyarrow.parquet as pq
from tests.e2e_cpu.runs import ROOT
from tests.quickstart.plain_transformers import greedy_accuracy


def test_the_quickstart_takes_a_student_from_below_35_to_above_80_percent(tmp_path):
    seed = 7
    command = [sys.executable, "-m", "opd.quickstart", "--seed", str(seed), "--out", str(tmp_path / "out")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=500)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["accuracy_before"] < 0.35
    assert result["accuracy_after"] > 0.80
    assert result["accuracy_teacher"] >= 0.95
    assert result["seed"] == seed
    heldout = pq.read_table(tmp_path / "out" / "heldout.parquet")
    assert heldout.num_rows == result["num_heldout"]
    assert {"data_source", "prompt", "ability", "reward_model", "extra_info"} <= set(heldout.column_names)
    found = greedy_accuracy(tmp_path / "out" / "model", tmp_path / "out" / "heldout.parquet")
    assert found == result["accuracy_model"], "the converted folder is what the table says of it, for anybody"
    assert (tmp_path / "out" / "learning_curve.png").stat().st_size > 10_000
