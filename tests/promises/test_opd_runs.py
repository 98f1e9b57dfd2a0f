"""Promises that real distillations keep: one run, the same run killed and resumed, its conversion, and a start that fails."""

import csv
import io
import json
import math
import re
import time
from pathlib import Path

import pytest
from tests.promises import runs
from tests.promises.commands import launch, opdctl, python, run
from tests.promises.runs import OPD_STEPS, PROMPTS, RUN_S, SAMPLES, TOY, Left, finish, kill_all, start, tensors

pytestmark = [pytest.mark.run, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def opd(tmp_path_factory: pytest.TempPathFactory) -> Left:
    folder = tmp_path_factory.mktemp("opd")
    return finish(folder, "opd", start(folder, "opd", TOY))


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """The same run, killed once step 2 was sealed and started again."""
    folder = tmp_path_factory.mktemp("resumed")
    first = start(folder, "opd", TOY)
    sealed = folder / "out" / "opd" / "checkpoints" / "global_step_2" / "COMPLETE"
    deadline_s = time.monotonic() + RUN_S
    try:
        while not sealed.exists() and first.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
    finally:
        kill_all(first)
    assert sealed.exists(), (folder / "run.log").read_text()[-4000:]
    return finish(folder, "opd", start(folder, "opd", TOY))


@pytest.mark.parametrize("name", ["opd", "resumed"])
def test_a_run_ends_with_exit_code_0_and_a_result_and_no_traceback(name, request):
    runs.must_end_well(request.getfixturevalue(name))


@pytest.mark.parametrize("name", ["opd"])
def test_the_log_has_one_readable_line_a_step(name, request):
    runs.must_log_each_step(request.getfixturevalue(name))


@pytest.mark.parametrize("name", ["opd", "resumed"])
def test_metrics_are_one_json_object_a_step(name, request):
    runs.must_leave_a_row_a_step(request.getfixturevalue(name))


@pytest.mark.parametrize("name", ["opd"])
def test_a_checkpoint_is_sealed_after_all_of_its_files(name, request):
    runs.must_seal_its_checkpoint(request.getfixturevalue(name))


def test_distillation_names_its_metrics_as_the_original_does(opd):
    names = "loss entropy grad_norm num_tokens batch_size valid_rows lr accuracy n_correct skipped skipped_step"
    for row in opd.steps:
        assert {f"opd/{name}" for name in names.split()} <= row.keys()
        assert {"opd/reward_weight_max", "opd/reward_weight_min"} <= row.keys()
        assert {"perf/max_memory_allocated_gb"} <= row.keys()
        assert row["opd/loss"] > 0
        assert row["opd/valid_rows"] == row["rollout/trajectories"] == PROMPTS * SAMPLES
        assert row["opd/accuracy"] == row["opd/n_correct"] / row["opd/valid_rows"]
    assert [row["val-core/toy_add/acc/mean@1"] for row in opd.rows if "training/global_step" not in row]


def test_distillation_lowers_the_divergence_from_the_teacher(opd):
    losses = [row["opd/loss"] for row in opd.steps]
    assert losses[-1] < losses[0] / 2


def test_a_step_runs_the_teacher_first_and_then_the_student(opd):
    for row in opd.steps:
        assert row["timing/teacher_s"] > 0
        assert row["timing/student_s"] > 0
        assert row["timing/teacher_s"] + row["timing/student_s"] <= row["timing_s/update_actor"]


def test_answers_weigh_n_times_the_softmax_of_their_rewards_within_a_prompt(opd):
    # Rewards are 0 or 1 and opd.reward_beta is 1: with k right answers of n, a right answer weighs n e / (k e + n - k).
    some_right = range(1, SAMPLES)
    right = [SAMPLES * math.e / (k * math.e + SAMPLES - k) for k in some_right]
    wrong = [SAMPLES / (k * math.e + SAMPLES - k) for k in some_right]
    for row in opd.steps:
        assert any(row["opd/reward_weight_max"] == pytest.approx(weight, rel=1e-5) for weight in right)
        assert any(row["opd/reward_weight_min"] == pytest.approx(weight, rel=1e-5) for weight in wrong)


def test_mini_batches_of_8_prompts_of_16_are_two_updates_a_step(opd):
    assert opd.result["updates"] == 2 * OPD_STEPS
    assert opd.result["updates_skipped"] == 0


def test_a_killed_run_resumes_from_a_sealed_step_to_the_same_bits(opd, resumed):
    assert resumed.code == 0, resumed.log[-4000:]
    steps = [int(step) for step in re.findall(r"resuming from step (\d+)", resumed.log)]
    assert len(steps) == 1
    assert 2 <= steps[0] < OPD_STEPS
    assert sorted(path.name for path in (resumed.folder / "attempts").iterdir()) == ["0001", "0002"]
    mine, theirs = tensors(resumed.checkpoint(OPD_STEPS)), tensors(opd.checkpoint(OPD_STEPS))
    assert mine.keys() == theirs.keys()
    assert {name.split("/")[0] for name in mine} == {"model", "optim"}
    assert [name for name, value in mine.items() if not value.equal(theirs[name])] == []
    for own, other in zip(resumed.steps, opd.steps, strict=True):
        for name in ("opd/loss", "opd/num_tokens", "opd/accuracy", "opd/reward_weight_max", "training/epoch"):
            assert own[name] == other[name], name


def test_distillation_of_single_answers_counts_no_padding_as_a_tools(opd):
    for row in opd.steps:
        assert row["opd/tool_mask/tool_tokens"] == row["opd/tool_mask/has_agent_mask"] == 0
        assert row["opd/tool_mask/llm_tokens"] == row["opd/num_tokens"]
        assert row["opd/num_turns/min"] == row["opd/num_turns/max"] == row["opd/num_turns/mean"] == 2


def test_collect_returns_every_metric_of_a_run_from_its_store(opd, tmp_path):
    done = run(opdctl("collect", "opd", "--store", opd.store.parent, "-o", "csv"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {int(row["step"]): row for row in csv.DictReader(io.StringIO(done.stdout))}
    assert sorted(rows) == list(range(OPD_STEPS + 1)), "the validation before training and each step"
    for step in opd.steps:
        assert float(rows[step["step"]]["opd/loss"]) == step["opd/loss"]


def test_collect_merges_the_attempts_of_a_resumed_run(resumed, tmp_path):
    done = run(opdctl("collect", "opd", "--store", resumed.store.parent, "-o", "json"), cwd=tmp_path)
    [found] = json.loads(done.stdout)["runs"]
    assert (found["state"], found["num_attempts"], found["last_step"]) == ("succeeded", 2, OPD_STEPS)


@pytest.fixture(scope="module")
def converted(opd: Left, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The last checkpoint as two model folders: named by CHECKPOINT_PATH with `/actor`, and by the command without."""
    folder, step = tmp_path_factory.mktemp("converted"), opd.checkpoint(OPD_STEPS)
    (folder / "convert.yaml").write_text("kind: convert\nname: to-hf\n")
    by_run = run(launch("convert.yaml"), cwd=folder, variables={"CHECKPOINT_PATH": f"{step}/actor"}, timeout_s=RUN_S)
    assert by_run.returncode == 0, by_run.stdout[-2000:] + by_run.stderr[-2000:]
    by_command = run(python("opd.convert", step, "--target", folder / "model"), cwd=folder, timeout_s=RUN_S)
    assert by_command.returncode == 0, by_command.stderr[-2000:]
    return step.with_name(f"global_step_{OPD_STEPS}-huggingface"), folder / "model"


def test_a_checkpoint_with_and_without_actor_becomes_a_folder_for_transformers(converted, opd):
    from transformers import AutoModelForCausalLM

    trained = tensors(opd.checkpoint(OPD_STEPS))
    trained = {name.removeprefix("model/"): value for name, value in trained.items() if name.startswith("model/")}
    for folder in converted:
        model = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        assert model.keys() == trained.keys()
        for name, value in model.items():
            assert value.equal(trained[name]), name
        assert {"config.json", "tokenizer.json"} <= {path.name for path in folder.iterdir()}


def test_a_run_that_fails_ends_with_exit_code_1(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "store").write_text("a file where the store's folder should be")
    left = finish(tmp_path, "opd", start(tmp_path, "opd", TOY))
    assert left.code == 1
    assert str(Path("out") / "store") in left.log
