"""Mechanisms that bound a long-context run's memory: what verl is given, and what `--plan` says of each phase."""

import itertools
import json
import re

import pytest
from tests.promises.commands import dry_run, launch, run
from tests.promises.test_variables import ACTOR, FILES, ROLLOUT

TRAINS = ("grpo", "native", "native-no-kl", "opd", "opd-agent")
VOCABULARY = 151_936
# The sizes of Qwen3-8B and Qwen3-1.7B.
SIZES = {
    "teacher": {"hidden_size": 4096, "num_hidden_layers": 36, "intermediate_size": 12288, "num_attention_heads": 32},
    "student": {"hidden_size": 2048, "num_hidden_layers": 28, "intermediate_size": 6144, "num_attention_heads": 16},
}


@pytest.mark.parametrize("kind", TRAINS)
def test_parameters_and_optimizer_are_offloaded(kind):
    values = dry_run(FILES[kind]).values
    assert values[f"{ACTOR}.fsdp_config.param_offload"] is True
    assert values[f"{ACTOR}.fsdp_config.optimizer_offload"] is True
    assert values["actor_rollout_ref.ref.fsdp_config.param_offload"] is True


@pytest.mark.parametrize("kind", TRAINS)
def test_rows_run_without_padding(kind):
    assert dry_run(FILES[kind]).values["actor_rollout_ref.model.use_remove_padding"] is True


@pytest.mark.parametrize("kind", TRAINS)
def test_a_batch_is_split_into_micro_batches(kind):
    values = dry_run(FILES[kind]).values
    assert values[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] == 4 < values[f"{ACTOR}.ppo_mini_batch_size"]


@pytest.mark.parametrize("kind", TRAINS)
def test_the_rollout_frees_its_cache_and_has_a_bound(kind):
    values = dry_run(FILES[kind]).values
    assert values[f"{ROLLOUT}.free_cache_engine"] is True
    assert values[f"{ROLLOUT}.gpu_memory_utilization"] == 0.7


def test_the_main_grpo_recipe_caps_the_tokens_of_batches_whose_size_follows_the_lengths():
    values = dry_run(FILES["grpo"]).values
    row = values["data.max_prompt_length"] + values["data.max_response_length"]
    assert values[f"{ACTOR}.use_dynamic_bsz"] is True
    assert values[f"{ACTOR}.ppo_max_token_len_per_gpu"] == 2 * row
    for part in ("rollout", "ref"):
        assert values[f"actor_rollout_ref.{part}.log_prob_max_token_len_per_gpu"] == 3 * row


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Return GiB on one GPU by row and phase of `--plan`: Qwen3-8B's sizes distilled into Qwen3-1.7B's on one H100."""
    folder = tmp_path_factory.mktemp("plan")
    for name, sizes in SIZES.items():
        (folder / name).mkdir()
        config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": VOCABULARY, "head_dim": 128,
                  "num_key_value_heads": 8, "max_position_embeddings": 40960, **sizes}  # fmt: skip
        (folder / name / "config.json").write_text(json.dumps(config))
    tree = {"kind": "opd", "model": {"path": "student"}, "teacher": {"path": "teacher"},
            "trainer": {"gpus_per_node": 1}, "cluster": {"gpu": {"type": "NVIDIA-H100-80GB-HBM3"}}}  # fmt: skip
    (folder / "exp.json").write_text(json.dumps(tree))
    done = run(launch("exp.json", "--plan"), cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    head, *lines = done.stdout.splitlines()
    [_, *phases] = re.finditer(r"\S+( \S+)*", head)
    edges = [next(iter(re.finditer(r"\S+( \S+)*", head))).end(), *(phase.end() for phase in phases)]
    table: dict[str, dict[str, float]] = {}
    for line in lines:
        cells = [line[left:right].strip() for left, right in itertools.pairwise(edges)]
        if name := re.match(r"[a-zA-Z' ]+", line):
            table[name[0].strip()] = {
                phase[0]: float(cell)
                for phase, cell in zip(phases, cells, strict=True)
                if re.fullmatch(r"[\d.]+", cell)
            }
        if line.startswith("total"):
            return table
    raise AssertionError(done.stdout)


def test_teacher_and_student_are_never_on_the_gpu_at_the_same_time(plan):
    assert plan["teacher weights"].keys() == {"teacher"}
    assert plan["teacher weights"]["teacher"] > 15, "GiB: 8.2 billion parameters in bf16"
    assert plan["optimizer moments"].keys() == {"student", "optimizer step"}
    assert "teacher" not in plan["gradients"]
    assert max(plan["total"].values()) < 79.1


def test_the_teachers_phase_leaves_hidden_states_and_no_logits(plan):
    num_tokens, width = 64 * 8192, SIZES["teacher"]["hidden_size"]
    at_most = num_tokens * width * 2 / 2**30 * 4  # four mini-batches of a step, in bf16
    assert 0 < plan["hidden states"]["student"] <= at_most
    assert "teacher" not in plan["logits"]


def test_no_tensor_of_tokens_by_vocabulary_of_a_micro_batch_exists(plan):
    one_row = (2048 + 8192) * VOCABULARY * 4 / 2**30
    assert plan["logits"]["student"] < one_row / 4


def test_the_rollouts_cache_is_not_there_while_the_models_train(plan):
    server = plan["rollout server"]
    assert server["rollout"] == pytest.approx(0.7 * 79.1, abs=0.5)
    assert max(server["teacher"], server["student"]) < 2
