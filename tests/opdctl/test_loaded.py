"""Runs from Python: the README's example, lazy tables, and comparisons by t intervals with seeds pooled."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.opdctl.conftest import SPEC

import opdctl
from opd.evaluation.results import as_metrics, as_record, evaluate
from opd.evaluation.samples import write_generations
from opd.store.local import LocalStore
from opdctl.console import ToolError
from opdctl.runs.find import RunPlace
from opdctl.runs.gather import gather

README = Path(opdctl.__file__).parent / "README.md"
RATES = {"base": 1.0, "new": 2.0}


@pytest.fixture
def seeds(make_run: Callable, answers: Callable, store: Path) -> Path:
    """Two evaluated specs of three seeds each; `new` answers one problem more, and the less so the larger its seed."""
    for name, rate in RATES.items():
        for seed in (1, 2, 3):
            run_id = f"{name}-s{seed}"
            more = 1.0 if name == "new" else 0.0
            samples = answers(run_id, {0: [0, 0], 1: [more, 0], 2: [1, 1], 3: [more, float(seed > 1)]})
            found = evaluate(samples, num_samples=2)
            make_run(
                run_id,
                attempts=[{step: {"opd/loss": rate * step + seed} for step in (1, 2)} | {3: as_metrics(found)}],
                spec={**SPEC, "seed": seed, "actor": {"learning_rate": rate}},
                result={"eval": {"math": as_record(found[0])}},
            )
            write_generations(store / run_id / "eval" / "generations.parquet", samples)
    return store


def test_the_readme_s_example_runs_as_it_stands(seeds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    [code] = [block.partition("```")[0] for block in README.read_text().split("```python\n")[1:]]
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    assert code.count("s3://experiments/opd") == 1
    names: dict = {}
    exec(compile(code.replace("s3://experiments/opd", str(seeds)), str(README), "exec"), names)
    assert "succeeded 2.0" in capsys.readouterr().out
    assert names["loss"].to_pylist()[:2] == [{"step": 1, "opd/loss": 3.0}, {"step": 2, "opd/loss": 5.0}]
    # Right answers a problem are 0, 1, 2 and 1 of 2: pass@2 is 0, 1, 1, 1.
    [row] = names["pass_at_2"].to_pylist()
    assert (row["step"], row["data_source"], row["quantity"], row["value"]) == (3, "math", "acc", 0.75)
    assert row["standard_error"] == pytest.approx(0.25)
    assert names["wrong"].num_rows == 4
    assert (tmp_path / "loss.png").stat().st_size > 0


def test_seeds_are_pooled_into_a_mean_and_a_band_by_student_s_t(seeds: Path) -> None:
    rows = opdctl.band(opdctl.load_all(str(seeds)), "opd/loss").to_pylist()
    assert [(row["group"], row["step"], row["mean"]) for row in rows] == [
        ("base-s1 (+2 seeds)", 1, 3.0), ("base-s1 (+2 seeds)", 2, 4.0), ("new-s1 (+2 seeds)", 1, 4.0), ("new-s1 (+2 seeds)", 2, 6.0),
    ]  # fmt: skip
    # Three seeds, deviation 1: 4.3027 (the printed table's t of two degrees of freedom) errors of 1 / sqrt(3).
    assert rows[0]["high"] - rows[0]["mean"] == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert rows[0]["num_runs"] == 3
    single = opdctl.band([opdctl.load(f"{seeds}/new-s2")], "opd/loss").to_pylist()[0]
    assert (single["mean"], single["low"], single["high"]) == (4.0, None, None)


def test_an_evaluation_is_compared_by_problem_with_the_seeds_of_each_side_pooled(seeds: Path) -> None:
    runs = opdctl.load_all(str(seeds))
    found = {row["quantity"]: row for row in opdctl.compare(runs, base="base-s2").to_pylist()}
    mean, passed = found["math mean@n"], found["math pass@2"]
    # More of the mean by problem (and seed): 0, 1/2, 0, (1/2, 1/2, 1/2). More of pass@2: 0, 1, 0, (1, 0, 0).
    assert mean["difference"] == pytest.approx((0 + 0.5 + 0 + 0.5) / 4)
    assert passed["difference"] == pytest.approx((0 + 1 + 0 + 1 / 3) / 4)
    assert (passed["num_pairs"], passed["paired_by"], passed["remark"]) == (4, "problem", "mean of 3 and 3 seeds")
    # Differences 0, 1/2, 0, 1/2: error 0.2887 / 2, t of three degrees of freedom 3.1824.
    assert mean["high"] - mean["difference"] == pytest.approx(3.1824 * math.sqrt(1 / 12) / 2, abs=1e-4)
    assert mean["is_notable"] == (mean["low"] > 0)


def test_the_base_is_the_best_that_has_finished_unless_one_is_named(seeds: Path, make_run: Callable, inside: Callable) -> None:  # fmt: skip
    crashed = {"val-core/math/acc/mean@2": 1.0}
    make_run("a-crashed", attempts=[{1: crashed}], spec={**SPEC, "actor": {"learning_rate": 9.0}})
    longer = {**SPEC, "seed": 4, "actor": {"learning_rate": 1.0}, "trainer": {"total_steps": 9}}
    make_run("base-s4", attempts=[{1: {"opd/loss": 1.0}}], spec=longer)
    runs = opdctl.load_all(str(seeds))
    assert runs[0].record.run_id == "a-crashed"
    assert set(opdctl.compare(runs)["base"].to_pylist()) == {"new-s1 (+2 seeds)"}
    assert set(opdctl.compare(runs, base="base-s3")["base"].to_pylist()) == {"base-s1 (+2 seeds)"}
    with pytest.raises(ToolError, match="base 'typo' is not among the runs"):
        opdctl.compare(runs, base="typo")
    assert "base new-s1 (+2 seeds)" in inside("compare", "--store", seeds).stdout
    words = ("compare", "base-s1", "new-s1", "--store", seeds)
    assert "base base-s1\n" in inside(*words).stdout, "the first of those that are named"
    found = inside("compare", "base-s1", "base-s4", "--store", seeds).stdout
    assert "trainer.total_steps" in found, "runs of two lengths are no group"
    assert "base new-s1\n" in inside(*words, "--base", "new-s1").stdout


def test_a_run_that_is_deleted_while_it_is_read_costs_no_other_its_row(make_run: Callable, store: Path, tmp_path: Path) -> None:  # fmt: skip
    class Deleted(LocalStore):
        def _get(self, key: str) -> bytes:
            shutil.rmtree(self.root, ignore_errors=True)
            return super()._get(key)

    make_run("kept")
    make_run("gone")
    places = [RunPlace(run_id="gone", store=Deleted(store / "gone")), RunPlace(run_id="kept", store=LocalStore(store / "kept"))]  # fmt: skip
    gone, kept = (run.record for run in gather(places))
    assert (gone.state, kept.run_id) == ("unreadable", "kept")
    assert "FileNotFoundError" in gone.detail
