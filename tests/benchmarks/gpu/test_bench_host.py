"""What `bench_host` starts and what it says of it; the runs themselves need several GPUs."""

import sys

import pytest
from tests.benchmarks.gpu.bench_host import KILLED, ONE, SMOKE, Run, play, report, wanting, waves
from tests.gpu_smoke.smoke import SPECS

from opd.config.load import load_spec


@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_every_run_of_the_smoke_test_is_a_spec(num_gpus):
    runs = [run for wave in waves(num_gpus) for run in wave]
    assert len({run.name for run in runs}) == len(runs)
    for run in runs:
        if run.program == SMOKE:
            _, only, *sets = run.arguments
            spec = load_spec(str(SPECS[only]), env={}, sets=sets[1::2], overrides=[]).spec
            assert spec.trainer.gpus_per_node == run.num_gpus


def test_a_later_call_makes_the_runs_that_are_not_known_or_were_cut_short():
    wave = [Run(name=name, num_gpus=1, program=SMOKE, arguments=()) for name in ("one", "two", "three", "four")]
    known = {"one": {"exit": 0}, "two": {"exit": 1}, "three": {"exit": None}}
    assert [run.name for run in wanting(wave, known, [""])] == ["two", "three", "four"]
    assert [run.name for run in wanting(wave, known, ["fo"])] == ["four"]


@pytest.mark.slow
def test_runs_that_are_made_side_by_side_have_places_of_their_own_until_they_end(tmp_path, monkeypatch):
    code = "import os, sys, time; time.sleep(1); print(os.environ['CUDA_VISIBLE_DEVICES']); sys.exit(int(sys.argv[1]))"
    monkeypatch.setattr(Run, "words", lambda run, *_: [sys.executable, "-c", code, *run.arguments])
    wave = [Run(name=f"run {i}", num_gpus=1, program=SMOKE, arguments=(str(i),)) for i in range(3)]
    ended = {run.name: code for run, code in play(wave, tmp_path, limit_s=60, at_once=2)}
    assert ended == {"run 0": 0, "run 1": 1, "run 2": 2}
    assert {(tmp_path / f"run_{i}/log").read_text() for i in range(2)} == {"0\n", "1\n"}
    assert (tmp_path / "run_2/log").read_text() in ("0\n", "1\n")


@pytest.mark.slow
def test_runs_take_none_but_the_gpus_that_their_caller_may_use(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    monkeypatch.setattr(Run, "words", lambda *_: [sys.executable, "-c", code])
    wave = [Run(name=f"run {num}", num_gpus=num, program=SMOKE, arguments=()) for num in (1, 2)]
    assert len(list(play(wave, tmp_path, limit_s=60, at_once=1))) == 2
    assert [(tmp_path / f"run_{num}/log").read_text() for num in (1, 2)] == ["4\n", "4,6\n"]


def test_a_run_that_outlasts_its_limit_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.benchmarks.gpu.bench_host.END_S", 0.5)
    monkeypatch.setattr(Run, "words", lambda *_: [sys.executable, "-c", "import time; time.sleep(600)"])
    [(_, code)] = play([Run(name="run", num_gpus=1, program=SMOKE, arguments=())], tmp_path, limit_s=0.5, at_once=1)
    assert code is None


def test_the_report_counts_tokens_of_each_gpu_and_sets_divergences_side_by_side():
    runs = {
        f"strict, {ONE}": {"steps": 2, "trained_tokens_per_s": 10.0, "step_s": 10.0},
        "strict, 4 GPUs": {"steps": 2, "trained_tokens_per_s": 32.0, "step_s": 10.0},
        f"divergence, {ONE}": {"steps": 2, "divergence": [1.0, 0.5], "pearson_min": 0.9995},
        "divergence, data-parallel": {"steps": 2, "divergence": [1.00001, 0.5002], "pearson_min": 0.9995},
        KILLED: {"steps": 1, "promises": {"goes on": "BROKEN: did not"}},
    }
    assert list(report(runs, 4)) == [
        f"strict, {ONE}: 10 trained tokens a second and GPU; a step 10.0 s",
        "strict, 4 GPUs: 8 trained tokens a second and GPU, 0.80 of one GPU's; a step 10.0 s",
        "divergence, data-parallel: 2 steps, apart at most 2.0e-04 (first 1.0e-05), Pearson at least 0.99950",
        f"{KILLED}: goes on: BROKEN: did not",
    ]
