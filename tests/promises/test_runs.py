"""Promises that only real runs can keep: four runs on a CPU, and the files, log lines and metrics rows that they leave."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.promises.commands import environment, launch, opdctl, python, run

pytestmark = [pytest.mark.run, pytest.mark.timeout(1800)]

SPECS = Path(__file__).parent / "specs"
RUN_S = 900.0
TOY = {"MODEL_PATH": "toy://student", "TEACHER_MODEL_PATH": "toy://teacher", "MODEL_NAME": "toy-student"}
AGENT = {"MODEL_PATH": "agent://student", "TEACHER_MODEL_PATH": "agent://teacher", "DATABASE_DIR": "agent://database",
         "MAX_ASSISTANT_TURNS": "3", "MAX_TOOL_RESPONSE_LENGTH": "64"}  # fmt: skip
OPD_STEPS = 6
SAMPLES = 4  # answers to a prompt in specs/opd.yaml and specs/grpo.yaml
PROMPTS = 16


@dataclass(frozen=True)
class Left:
    """What a run left: its exit code, its log and its folders on the disk and in the store."""

    code: int
    log: str
    folder: Path
    store: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics rows of all attempts, the earliest attempt first."""
        files = sorted(self.folder.glob("attempts/*/metrics.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """One row for each training step: the newest attempt's."""
        rows = {row["step"]: row for row in self.rows if "training/global_step" in row}
        return [rows[step] for step in sorted(rows)]

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.store / "result.json").read_text())

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"global_step_{step}"


def start(folder: Path, kind: str, variables: dict[str, str]) -> subprocess.Popen[str]:
    """Start the experiment file of a kind in a folder; its output goes to the folder's run.log."""
    words = [str(word) for word in launch(SPECS / f"{kind}.yaml")]
    with (folder / "run.log").open("a") as log:
        return subprocess.Popen(words, cwd=folder, env=environment(variables), stdout=log, stderr=subprocess.STDOUT, text=True)  # fmt: skip


def kill_all(process: subprocess.Popen[str]) -> None:
    """Send SIGKILL to every process of a run."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        for child in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.wait(60)


def finish(folder: Path, kind: str, process: subprocess.Popen[str]) -> Left:
    """Wait for a started run and return what it left."""
    try:
        code = process.wait(RUN_S)
    finally:
        kill_all(process)
    out = folder / "out"
    return Left(code, (folder / "run.log").read_text(), out / kind, out / "store" / kind)


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


@pytest.fixture(scope="module")
def grpo(tmp_path_factory: pytest.TempPathFactory) -> Left:
    folder = tmp_path_factory.mktemp("grpo")
    return finish(folder, "grpo", start(folder, "grpo", {"MODEL_PATH": "toy://student"}))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Left:
    folder = tmp_path_factory.mktemp("agent")
    return finish(folder, "agent", start(folder, "agent", AGENT))


@pytest.mark.parametrize("name", ["opd", "resumed", "grpo", "agent"])
def test_a_run_ends_with_exit_code_0_and_a_result_and_no_traceback(name, request):
    left = request.getfixturevalue(name)
    assert left.code == 0, left.log[-4000:]
    assert left.result["steps"] == len(left.steps)
    assert "Traceback (most recent call last)" not in left.log
    assert not (left.store / "fatal.json").exists()


@pytest.mark.parametrize("name", ["opd", "grpo", "agent"])
def test_the_log_has_one_readable_line_a_step(name, request):
    left = request.getfixturevalue(name)
    lines = [line for line in left.log.splitlines() if re.search(r"(?<!at )\bstep \d+/\d+\b", line)]
    numbers = [re.search(r"\bstep (\d+)/(\d+)\b", line).groups() for line in lines]
    assert numbers == [(str(step), str(len(left.steps))) for step in range(1, len(left.steps) + 1)]
    for line in lines:
        assert re.search(r"\bloss -?\d+\.\d+", line)
        assert len(line) < 200
        assert "\x1b" not in line


@pytest.mark.parametrize("name", ["opd", "resumed", "grpo", "agent"])
def test_metrics_are_one_json_object_a_step(name, request):
    left = request.getfixturevalue(name)
    assert [row["training/global_step"] for row in left.steps] == list(range(1, left.result["steps"] + 1))
    for row in left.steps:
        assert {"training/epoch", "timing_s/step", "rollout/trajectories", "rollout/failed"} <= row.keys()
        assert row["rollout/failed"] == 0
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
    last = max((left.folder / "attempts").iterdir()).name
    own, stored = (root / "attempts" / last / "metrics.jsonl" for root in (left.folder, left.store))
    assert [json.loads(line) for line in stored.read_text().splitlines()] == [
        json.loads(line) for line in own.read_text().splitlines()
    ]


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
        assert row["timing/teacher_s"] + row["timing/student_s"] <= row["timing/train_s"]


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


@pytest.mark.parametrize("name", ["opd", "grpo", "agent"])
def test_a_checkpoint_is_sealed_after_all_of_its_files(name, request):
    left = request.getfixturevalue(name)
    for root in (left.folder, left.store):
        step = root / "checkpoints" / f"global_step_{left.result['steps']}"
        manifest = json.loads((step / "manifest.json").read_text())
        files = {str(path.relative_to(step)) for path in step.rglob("*") if path.is_file()}
        assert {item["path"] for item in manifest["files"]} == files - {"manifest.json", "COMPLETE"}
        for item in manifest["files"]:
            assert hashlib.sha256((step / item["path"]).read_bytes()).hexdigest() == item["sha256"], item["path"]
        assert "actor/model_world_size_1_rank_0.pt" in files


def tensors(folder: Path) -> dict[str, Any]:
    """Return every tensor of a checkpoint's model and optimizer by file and place."""
    import torch
    import torch.distributed.tensor  # from then on torch.load with weights_only accepts a DTensor

    found: dict[str, torch.Tensor] = {}

    def look(place: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[place] = getattr(value, "_local_tensor", value)
        elif isinstance(value, dict):
            for key, item in value.items():
                look(f"{place}/{key}", item)
        elif isinstance(value, list | tuple):
            for number, item in enumerate(value):
                look(f"{place}/{number}", item)

    for file in sorted(folder.glob("actor/*_world_size_*.pt")):
        if file.name.startswith(("model_", "optim_")):
            look(file.name.partition("_")[0], torch.load(file, weights_only=True))
    return found


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


def test_grpo_trains_by_verls_loss_without_a_teacher(grpo):
    for row in grpo.steps:
        assert row["rollout/trajectories"] == PROMPTS * SAMPLES
        assert {"actor/pg_loss", "actor/grad_norm", "actor/pg_clipfrac"} <= row.keys()
        assert "actor/kl_loss" not in row, "the main recipe has no KL term"
        assert not [name for name in row if name.startswith("opd/")]


def test_conversations_with_tools_log_tool_masks_and_turns(agent):
    for row in agent.steps:
        model, tool = row["tool_mask/llm_tokens"], row["tool_mask/tool_tokens"]
        assert model > 0
        assert tool > 0, "the tools answered"
        assert row["tool_mask/tool_ratio"] == pytest.approx(tool / (model + tool))
        assert 2 < row["num_turns/max"] <= 1 + 2 * 3
        assert 2 <= row["num_turns/min"] <= row["num_turns/mean"] <= row["num_turns/max"]


def test_distillation_trains_on_the_models_tokens_and_on_no_tool_token(agent):
    for row in agent.steps:
        assert row["opd/num_tokens"] == row["tool_mask/llm_tokens"]
        assert row["opd/loss"] > 0


def test_distillation_of_single_answers_counts_no_padding_as_a_tools(opd):
    for row in opd.steps:
        assert row["opd/tool_mask/tool_tokens"] == row["opd/tool_mask/has_agent_mask"] == 0
        assert row["opd/tool_mask/llm_tokens"] == row["opd/num_tokens"]
        assert row["opd/num_turns/min"] == row["opd/num_turns/max"] == row["opd/num_turns/mean"] == 2


def test_collect_returns_every_metric_of_a_run_from_its_store(opd, tmp_path):
    done = run(opdctl("collect", "opd", "--store", opd.store.parent, "--format", "csv"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {int(row["step"]): row for row in csv.DictReader(io.StringIO(done.stdout))}
    assert sorted(rows) == list(range(OPD_STEPS + 1)), "the validation before training and each step"
    for step in opd.steps:
        assert float(rows[step["step"]]["opd/loss"]) == step["opd/loss"]


def test_collect_merges_the_attempts_of_a_resumed_run(resumed, tmp_path):
    done = run(opdctl("collect", "opd", "--store", resumed.store.parent, "--format", "json"), cwd=tmp_path)
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
