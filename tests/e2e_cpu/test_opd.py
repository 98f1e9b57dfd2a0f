"""On-policy distillation end to end: verl's trainer, the rollout server, two phases, the run directory."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from tests.e2e_cpu.runs import TIMEOUT_S, finish, heard_during, run, start
from transformers import AutoTokenizer

from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.data.toy.task import write_parquet
from opd.runs.tokens import file_key
from opd.store.local import LocalStore
from opdctl.report import token_page
from opdctl.report.page import environment


@pytest.mark.parametrize(
    "loss",
    [
        ["opd.loss_type=reverse_kl"],
        ["opd.loss_type=forward_kl"],
        ["opd.loss_type=jsd", "opd.beta=0.3"],
    ],
    ids=["reverse_kl", "forward_kl", "jsd"],
)
def test_a_run_with_each_divergence_trains_and_leaves_a_result(tmp_path, loss):
    process = start(tmp_path, "opd", *loss, "trainer.save_freq=3")
    heard = heard_during(process)
    outcome = finish(process, tmp_path, "opd").must_be_clean()
    steps = outcome.steps
    assert [row["training/global_step"] for row in steps] == [1, 2, 3]
    assert outcome.result["steps"] == 3
    for row in steps:
        assert row["opd/num_updates"] == 2, "16 prompts in mini-batches of 8 are two updates (defect 14: one)"
        assert row["opd/loss"] > 0
        assert row["rollout/failed"] == row["reward/failed"] == row["opd/skipped_step"] == 0
        assert row["training/rollout_probs_diff_max"] < 1e-5, "rollout and actor are one model after weight sync"
        assert row["opd/tool_mask/tool_tokens"] == 0, "padding is not a tool's (defect 10)"
    assert (outcome.run_dir / "checkpoints" / "global_step_3" / "COMPLETE").exists()
    assert outcome.result["updates"] == 6
    assert outcome.result["updates_skipped"] == 0
    assert outcome.result["faults"] == []
    for model in (STUDENT_DIR, TEACHER_DIR):
        assert re.search(
            rf"start: \S*/{model.name}: \d+\.\d s to read, \d+\.\d s to spread over the ranks, ", outcome.output
        )
    tokens_are_told(outcome)
    origin = json.loads(
        (outcome.run_dir.parent / "store" / outcome.run_dir.name / "attempts/0001/origin.json").read_text()
    )
    assert (origin["devices"], origin["trackers"]) == ({"CPU": 1}, {})
    told = {line["name"]: line["verdict"] for line in origin["preflight"]}
    # 16 answers are too few neighbours, and a CPU has no memory of its own.
    assert [name for name, verdict in told.items() if verdict == "ok"] == ["tokenizer", "chat template", "entropy", "perplexity", "right answers"]  # fmt: skip
    assert (told["position"], told["memory"]) == ("not known", "not known")
    # TransferQueue and torch unpickle what reaches them, Ray runs it: nobody else's machine may.
    assert not {listener for listener in heard if not listener.is_loopback}
    for part in ("TransferQueueController", "SimpleStorageUnit", "gcs_server", "WorkerDict", "RolloutServer"):
        assert any(part in listener.command for listener in heard), f"{part} was not heard at all"


def tokens_are_told(outcome):
    """The first step, the last and each checkpoint's leave their tokens, here and in the store, and the tool shows them."""
    store = LocalStore(outcome.run_dir.parent / "store" / outcome.run_dir.name)
    steps = token_page.load(store)
    assert [step.step for step in steps] == [1, 3]
    for step in steps:
        assert (outcome.run_dir / file_key(step.step)).read_bytes() == store.get(file_key(step.step))
        row = outcome.steps[step.step - 1]
        assert step.covers_all
        for place in (2, 3):
            assert sum(cell[place] for cell in step.density) == row["opd/num_tokens"]
        assert len(step.rows) == 4
        for told in step.rows:
            assert len(told.texts) == told.num_tokens == sum(told.kept) == sum(told.trained)
            assert max(told.divergence) <= row["opd/divergence_max"] * 1.001
    html = token_page.render("opd", steps, environment())
    assert html.count('data-v="entropy ') == sum(told.num_tokens for step in steps for told in step.rows)


TWO_RANKS = {
    "everything offloaded": [
        "actor.param_offload=true",
        "actor.optimizer_offload=true",
        "teacher.offload=true",
        "actor.use_remove_padding=false",
    ],
    "sequences shared": ["actor.ulysses_sequence_parallel_size=2", "actor.use_remove_padding=true"],
}


@pytest.mark.parametrize("mode", ["everything offloaded", "sequences shared"])
def test_two_ranks_train_like_one(tmp_path, mode):
    one = run(tmp_path / "one", "opd", "actor.ppo_mini_batch_size=16").must_be_clean()
    two = run(
        tmp_path / "two", "opd", "trainer.gpus_per_node=2", "actor.ppo_mini_batch_size=16", *TWO_RANKS[mode]
    ).must_be_clean()
    assert one.accuracy()[0] == two.accuracy()[0]
    first, second = one.steps[0], two.steps[0]
    assert second["opd/num_tokens"] == first["opd/num_tokens"], "the same rollouts, whatever the number of ranks"
    for key in ("opd/loss", "opd/entropy", "opd/grad_norm"):
        assert second[key] == pytest.approx(first[key], rel=1e-5), key
    assert second["training/rollout_probs_diff_max"] < 1e-5


def test_several_samples_a_prompt_are_weighted_by_reward_within_the_prompt(tmp_path):
    # The original never repeats prompts, so that its weights compare different prompts (defect 1).
    outcome = run(
        tmp_path, "opd", "rollout.num_samples=4", "opd.reward_beta=0.5", "trainer.total_steps=1"
    ).must_be_clean()
    row = outcome.steps[0]
    assert row["rollout/trajectories"] == 64
    assert row["opd/valid_rows"] == 64
    assert row["opd/reward_weight_max"] > 1 > row["opd/reward_weight_min"]


def test_a_run_whose_prompts_do_not_fit_ends_with_exit_code_2(tmp_path):
    # The template's tokens decide, so this is found once the data set is made.
    outcome = run(tmp_path, "opd", "data.max_prompt_length=3")
    assert outcome.returncode == 2
    assert "fits data.max_prompt_length=3 tokens" in outcome.output
    assert "Traceback" not in outcome.output
    ended = json.loads((outcome.run_dir / "attempts" / "0001" / "ended.json").read_text())
    assert ended["outcome"] == "failed"


def test_a_teacher_with_a_token_more_trains_and_ends_where_it_says_too_much_with_it(tmp_path):
    teacher = tmp_path / "teacher"
    shutil.copytree(TEACHER_DIR, teacher)
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|mine|>"]})
    tokenizer.save_pretrained(teacher)
    outcome = run(
        tmp_path, "opd", f"teacher.path={teacher}", "opd.max_unshared_mass=0", "trainer.val_before_train=false"
    )
    assert outcome.returncode == 2
    assert "student and teacher share 112 tokens, the teacher 1 more" in outcome.output
    [step] = outcome.steps  # it is written before the run ends
    assert 0 < step["opd/unshared_mass_teacher"] < 1
    assert step["opd/loss"] > 0
    assert "opd/unshared_mass_student" not in step
    ended = json.loads((outcome.run_dir / "attempts" / "0001" / "ended.json").read_text())
    assert f"the teacher puts {step['opd/unshared_mass_teacher']:.3g} of its probability" in ended["detail"]


def test_a_command_line_as_verls_users_write_it_trains(tmp_path):
    # Folders, files and verl's own keys; the teacher under the original's key; nothing of a spec, no key of ours.
    train, test = write_parquet(tmp_path / "data", seed=1)
    overrides = [
        f"data.train_files={train}",
        f"data.val_files={test}",
        "data.train_batch_size=16",
        "data.max_prompt_length=16",
        "data.max_response_length=8",
        f"actor_rollout_ref.model.path={STUDENT_DIR}",
        f"+actor_rollout_ref.ref.model.path={TEACHER_DIR}",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "trainer.device=cpu",
        "trainer.n_gpus_per_node=1",
        "trainer.total_training_steps=2",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.experiment_name=plain",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "opd.main_opd", *overrides],
        cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ | {"VERL_LOGGING_LEVEL": "WARNING"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "step 2/2" in done.stdout
    assert (tmp_path / "checkpoints" / "opd" / "plain" / "global_step_2" / "actor").is_dir(), "verl's own place"


def test_plain_hydra_without_a_teacher_says_what_is_missing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "opd.main_opd", "trainer.device=cpu", f"actor_rollout_ref.model.path={tmp_path}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 2
    assert "opd.teacher.path\n    rule:  the key is required\n    fix:   set it, TEACHER_MODEL_PATH" in done.stderr
