"""A pipeline from start to end with stages that take no time: real processes, run directories and signals, no Ray."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opd.pods import stop
from opdctl.cli import app

SPEC = """\
kind: pipeline
name: pipe
store: {url: store}
output: {root: out}
stages:
  ask: {kind: eval, model: {path: m}, data: {val: "s3://x/val.parquet"}}
  learn:
    kind: sft
    model: {path: m}
    data: {train: "s3://x/a.parquet", val: "s3://x/b.parquet"}
    sft: {teacher_answers: ["${stages.ask.generations}"]}
    trainer: {save_freq: -1}
"""
# Each stage is a run of its own that does nothing but end as the file `STAGE.code` says: an exit code, or `wait`.
PROGRAM = """
import os, sys, time
from pathlib import Path
from opd import pipeline
from opd.cluster import supervise
from opd.experiment import SpecError, load_spec
from opd.errors import RunError
from opd.pipeline import run
from opd.pods import stop
from opd.runs.run import open_run

def start(spec, within):
    told = Path(f"{spec.name}.code")
    told = told.read_text() if told.exists() else "0"
    if told == "raises":
        raise ZeroDivisionError("by nothing")
    try:
        with open_run(spec, within=within) as claimed:
            print(f"running {spec.name}", flush=True)
            while told == "wait":
                time.sleep(0.05)
            if told == "saves":
                while not stop.serve(claimed.asked_in, lambda: 12):
                    time.sleep(0.05)
                told = "0"
            if told != "0":
                return int(told)
            for answers in spec.sft.teacher_answers if spec.kind == "sft" else ():
                assert Path(answers).read_bytes() == b"answers"
            if spec.kind == "eval":
                claimed.stores[0].put("eval/generations.parquet", b"answers")
            claimed.finish({"steps": 1})
    except RunError as error:
        print(error)
        return error.exit_code
    return 0

if Path("between.signal").exists():  # one that comes as soon as a stage's process has ended
    def signalled(one_stage, *, grace_s):
        parent, code = os.getpid(), supervise.supervised(one_stage, grace_s=grace_s)
        if os.getpid() == parent:
            os.kill(parent, int(Path("between.signal").read_text()))
        return code
    pipeline.supervised = signalled

spec = load_spec("pipe.yaml", sets=sys.argv[1:]).spec
sys.exit(run(spec, start, is_final=True, origin="pipe.yaml", grace_s=20))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pipe.yaml").write_text(SPEC)
    return tmp_path


def process(folder: Path, *sets: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *sets]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(folder: Path, *sets: str) -> tuple[int, str]:
    running = process(folder, *sets)
    output, _ = running.communicate(timeout=120)
    return running.returncode, output


def started(output: str) -> list[str]:
    return [line.removeprefix("running ") for line in output.splitlines() if line.startswith("running ")]


@pytest.mark.slow
def test_stages_run_in_order_and_each_is_a_run_of_its_own_and_the_pipeline_one_line_of_a_list(folder, monkeypatch):
    code, output = ended(folder)
    assert (code, started(output)) == (0, ["pipe-ask", "pipe-learn"])
    spec = json.loads((folder / "store" / "pipe" / "stages" / "pipe-learn" / "spec.json").read_text())
    assert spec["sft"]["teacher_answers"] == ["store/pipe/stages/pipe-ask/eval/generations.parquet"]
    result = json.loads((folder / "store" / "pipe" / "result.json").read_text())
    assert (result["steps"], result["stages"]) == (2, {"ask": "pipe-ask", "learn": "pipe-learn"})

    monkeypatch.chdir(folder)
    listed = {
        store: json.loads(CliRunner().invoke(app, ["list", "--store", store, "-o", "json"]).stdout)["runs"]
        for store in ("store", "store/pipe/stages")
    }
    [line] = listed["store"]
    assert (line["run_id"], line["kind"], line["state"], line["last_step"]) == ("pipe", "pipeline", "succeeded", 2)
    assert {line["run_id"] for line in listed["store/pipe/stages"]} == {"pipe-ask", "pipe-learn"}

    assert started(ended(folder)[1]) == [], "nothing of a finished pipeline runs again"


@pytest.mark.slow
def test_it_ends_with_the_code_of_the_stage_that_fails_and_goes_on_there(folder):
    (folder / "pipe-learn.code").write_text("7")
    code, output = ended(folder)
    assert (code, started(output)) == (7, ["pipe-ask", "pipe-learn"])
    last = json.loads((folder / "store" / "pipe" / "attempts" / "0002" / "ended.json").read_text())
    assert (last["outcome"], last["detail"]) == ("failed", "stage learn: its run pipe-learn ended with exit code 7")

    (folder / "pipe-learn.code").unlink()
    assert (lambda found: (found[0], started(found[1])))(ended(folder)) == (0, ["pipe-learn"])


@pytest.mark.slow
def test_a_stage_that_has_changed_since_it_finished_is_refused_as_any_run_is(folder):
    (folder / "pipe-learn.code").write_text("1")
    ended(folder)
    code, output = ended(folder, "stages.ask.seed=8")
    assert (code, started(output)) == (2, [])
    assert "seed: 42 -> 8" in output

    (folder / "pipe-learn.code").unlink()
    assert ended(folder)[0] == 0
    code, output = ended(folder, "stages.more={kind: eval, model: {path: m}, data: {val: 's3://x/c.parquet'}}")
    assert (code, started(output)) == (2, [])
    assert "more has not run. Give the pipeline another name" in output


@pytest.mark.slow
def test_a_signal_ends_the_stage_and_the_pipeline_and_no_stage_follows(folder):
    (folder / "pipe-ask.code").write_text("wait")
    running = process(folder)
    for line in running.stdout:
        if line.startswith("running"):
            break
    running.send_signal(signal.SIGTERM)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert started(output) == []
    for run in ("pipe", "pipe/stages/pipe-ask"):
        record = json.loads((folder / "store" / run / "attempts" / "0001" / "ended.json").read_text())
        assert record["outcome"] == "stopped", run


@pytest.mark.slow
def test_a_signal_between_two_stages_ends_the_pipeline_before_the_next_begins(folder):
    (folder / "between.signal").write_text(str(int(signal.SIGTERM)))
    code, output = ended(folder)
    assert (code, started(output)) == (-signal.SIGTERM, ["pipe-ask"])
    assert not (folder / "store" / "pipe" / "stages" / "pipe-learn").exists()

    (folder / "between.signal").unlink()
    assert (lambda found: (found[0], started(found[1])))(ended(folder)) == (0, ["pipe-learn"])


@pytest.mark.slow
def test_pods_that_ask_in_the_pipeline_s_folder_are_answered_by_the_stage_that_runs(folder):
    (folder / "pipe-ask.code").write_text("saves")
    running = process(folder)
    for line in running.stdout:
        if line.startswith("running"):
            break
    stop.sign_of_life(folder / "out" / "pipe")  # as `opd.pods.start` gives it next to the trainer
    request = stop.ask(folder / "out" / "pipe", hold_s=120)
    assert stop.wait(folder / "out" / "pipe", request, 60) == 12
    running.terminate()  # the stage holds still until its pods are gone
    output, _ = running.communicate(timeout=60)
    assert (running.returncode, started(output)) == (130, [])


def test_the_data_of_all_stages_are_looked_at_before_the_first_runs(folder):
    code, output = ended(folder, "stages.learn.data.val=nowhere.parquet")
    assert (code, started(output)) == (2, [])
    assert "stages.learn.data.val" in output
    assert not (folder / "store").exists()


def test_a_dry_run_and_a_plan_show_every_stage_and_start_nothing(tmp_path):
    shipped = Path(__file__).parents[2] / "manifests" / "pipelines" / "warmup-distil-toy.yaml"
    headers = [f"# stage {name}" for name in ("warmup: sft", "warmup-model: convert", "distil: opd")]
    for flag, words in (("--dry-run", "model.path='stages://warmup-model/model'"), ("--plan", "teacher weights")):
        command = [sys.executable, "-m", "opd.launch", str(shipped), flag]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
        assert [line.split(",")[0] for line in done.stdout.splitlines() if line.startswith("#")] == headers
        assert words in done.stdout.partition(headers[-1])[2]
    warmup, _, rest = done.stdout.partition(headers[1])
    assert "optimizer moments" in warmup
    assert "no plan: kind convert has none" in rest
    assert list(tmp_path.iterdir()) == []
