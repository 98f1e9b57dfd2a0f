"""On-policy distillation end to end: verl's trainer, the rollout server, two phases, the run directory."""

import json
import os
import shutil
import sys

import pytest
from tests.e2e_cpu.runs import TIMEOUT_S, finish, heard_during, run, start
from tests.processes import output
from transformers import AutoTokenizer

from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.data.toy.task import write_parquet


def test_a_run_trains_and_listens_on_this_machine_alone(tmp_path):
    process = start(tmp_path, "opd", "opd.loss_type=jsd", "opd.beta=0.3", "trainer.save_freq=3")
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
    origin = json.loads(
        (outcome.run_dir.parent / "store" / outcome.run_dir.name / "attempts/0001/origin.json").read_text()
    )
    assert (origin["devices"], origin["trackers"]) == ({"CPU": 1}, {})
    # Ray runs what reaches it, torch unpickles it: no other machine may reach them.
    assert not {listener for listener in heard if not listener.is_loopback}
    for part in ("gcs_server", "WorkerDict", "RolloutServer"):
        assert any(part in listener.command for listener in heard), f"{part} was not heard at all"


TWO_RANKS = {
    "everything offloaded": [
        "actor.param_offload=true",
        "actor.optimizer_offload=true",
        "teacher.offload=true",
        "actor.use_remove_padding=false",
    ],
    "sequences shared": ["actor.ulysses_sequence_parallel_size=2", "actor.use_remove_padding=true"],
}


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return run(tmp_path_factory.mktemp("one"), "opd", "actor.ppo_mini_batch_size=16").must_be_clean()


@pytest.mark.parametrize("mode", TWO_RANKS)
def test_two_ranks_train_like_one(tmp_path, one, mode):
    sets = ("trainer.gpus_per_node=2", "actor.ppo_mini_batch_size=16", *TWO_RANKS[mode])
    two = run(tmp_path, "opd", *sets).must_be_clean()
    assert one.accuracy()[0] == two.accuracy()[0]
    first, second = one.steps[0], two.steps[0]
    assert second["opd/num_tokens"] == first["opd/num_tokens"], "the same rollouts, for any number of ranks"
    for key in ("opd/loss", "opd/entropy", "opd/grad_norm"):
        assert second[key] == pytest.approx(first[key], rel=1e-5), key
    assert second["training/rollout_probs_diff_max"] < 1e-5


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
    options = {"cwd": tmp_path, "timeout": TIMEOUT_S, "env": os.environ | {"VERL_LOGGING_LEVEL": "WARNING"}}
    assert "step 2/2" in output(sys.executable, "-m", "opd.main_opd", *overrides, **options)
    folder = tmp_path / "outputs" / "plain"
    assert (folder / "checkpoints" / "global_step_2" / "COMPLETE").exists()
    rows = [json.loads(line) for line in (folder / "attempts" / "0001" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert {"opd/loss", "opd/entropy", "rollout/trajectories", "timing_s/step"} <= rows[-1].keys()
