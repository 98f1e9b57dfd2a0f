"""The job of a spec whose teachers read prompts of their own."""

import math

import pytest
from tests.memory.jobs import STUDENT, TEACHER
from tests.minimal import MINIMAL

from opd.experiment import parse_tree
from opd.memory.sources import job_from_spec
from opd.shapes import ModelShape

ROW, LONGER = 2048 + 8192, 4096 + 8192


def job_of(**teacher):
    spec = parse_tree(MINIMAL["opd"] | {"teacher": {"path": "t", **teacher}, "opd": {"read_tokens": 1}}).spec
    return job_from_spec(spec, STUDENT, TEACHER, device_bytes=None)


def test_the_teachers_micro_batch_has_its_own_longer_rows_and_the_students_stays():
    # A forward without a gradient is never shorter than a row.
    plain, own = job_of(), job_of(prompt="{prompt}!", max_prompt_length=4096)
    assert (plain.row_tokens, plain.score_tokens) == (ROW, ROW)
    assert (own.row_tokens, own.score_tokens) == (ROW, LONGER)
    assert plain.train_tokens == own.train_tokens
    assert (plain.teacher_row_tokens, own.teacher_row_tokens) == (ROW, LONGER)
    assert own.hidden_bytes == plain.hidden_bytes, "hidden states are kept of responses only"


QWEN3_1_7B = ModelShape(
    vocab_rows=151_936, hidden=2048, layers=28, intermediate=6144, num_heads=16, num_kv_heads=8, head_dim=128, tied=True, qk_norm=True
)  # fmt: skip


# A layer's 50.3M entries compute 6 x 50.3e6 operations a token at 0.62 of 666e12 a second; the host takes 5 ms.
BUSY = 0.62 * 666e12 * 5e-3 / (6 * QWEN3_1_7B.visited_params)


def micro_batches(**more) -> tuple[int, int | None]:
    """Tokens of a micro-batch that a plan wishes for, and those that it lowers them to, of 512 rows of 512 tokens."""
    data = {"max_prompt_length": 64, "max_response_length": 448, "train_batch_size": 512}
    tree = MINIMAL["opd"] | {
        "device": "cuda", "data": data, "actor": {"ppo_mini_batch_size": 512}, "trainer": {"gpus_per_node": 1},
    }  # fmt: skip
    found = job_from_spec(parse_tree(tree | more).spec, QWEN3_1_7B, TEACHER, device_bytes=None)
    return found.train_tokens, found.least_train_tokens


def test_micro_batches_of_short_rows_keep_the_device_busy_and_may_shrink_to_what_the_host_launches_in_time():
    eager = {"ppo_mini_batch_size": 512, "torch_compile": False}
    assert micro_batches() == (2 * math.ceil(BUSY), math.ceil(BUSY))
    assert micro_batches(actor=eager) == (2 * math.ceil(2 * BUSY), math.ceil(2 * BUSY)), (
        "layers that are not compiled take twice as long"
    )
    assert micro_batches(opd={"train_tokens": 2048}) == (2048, None)
    assert micro_batches(opd={"train_tokens": 1}) == (512, None), "a row is never cut"
    assert micro_batches(actor={"ppo_mini_batch_size": 4}) == (4 * 512, 4 * 512), "all rows of an update"


def test_a_lora_students_adapters_are_counted_for_every_kind_that_has_a_plan():
    lora = {"lora": {"rank": 3, "target_modules": ["q_proj", "up_proj"]}}
    # Two layers of 8 to 8 and 8 to 16.
    for kind, models in (("opd", (STUDENT, TEACHER)), ("sft", (STUDENT,))):
        tree = MINIMAL[kind] | {"model": MINIMAL[kind]["model"] | lora}
        found = job_from_spec(parse_tree(tree).spec, *models, device_bytes=None)
        assert found.adapter_params == 2 * 3 * (16 + 24)


@pytest.mark.parametrize(
    "opd", [{"policy": {"weight": 1.0}}, {"stages": [{"policy_weight": 1.0}]}, {"loss_type": "sampled_reverse_kl"}]
)
def test_a_loss_that_the_fused_kernels_lack_is_planned_in_the_compiled_form(opd):
    tree = MINIMAL["opd"] | {"device": "cuda", "rollout": {"num_samples": 2}}
    found = [
        job_from_spec(parse_tree(tree | {"opd": one}).spec, STUDENT, TEACHER, device_bytes=None, capability=(9, 0))
        for one in ({}, opd)
    ]
    assert [each.workspace_bytes / 2**30 for each in found] == pytest.approx([1.3, 2.6])
