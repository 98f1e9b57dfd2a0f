"""The job of a spec whose teachers read prompts of their own."""

import pytest
from tests.memory.jobs import STUDENT, TEACHER
from tests.minimal import MINIMAL

from opd.config import parse_tree
from opd.memory.plan import make_plan
from opd.memory.sources import MOST_READ_TOKENS, job_from_spec
from opd.memory.table import render

ROW, LONGER = 2048 + 8192, 4096 + 8192


def job_of(**teacher):
    spec = parse_tree(MINIMAL["opd"] | {"teacher": {"path": "t", **teacher}, "opd": {"read_tokens": 1}}).spec
    return job_from_spec(spec, STUDENT, TEACHER, device_bytes=None)


def test_the_teachers_micro_batch_has_its_own_longer_rows_and_the_students_stays():
    # A forward without a gradient is never shorter than a row.
    plain, own = job_of(), job_of(prompt="{prompt}!", max_prompt_length=4096)
    assert (plain.row_tokens, plain.score_tokens, plain.train_tokens) == (ROW, ROW, 4 * ROW)
    assert (own.row_tokens, own.score_tokens, own.train_tokens) == (ROW, LONGER, 4 * ROW)
    assert (plain.teacher_row_tokens, own.teacher_row_tokens) == (ROW, LONGER)
    assert own.hidden_bytes == plain.hidden_bytes, "hidden states are kept of responses only"


def test_a_lora_students_adapters_are_counted_for_every_kind_that_has_a_plan():
    lora = {"lora": {"rank": 3, "target_modules": ["q_proj", "up_proj"]}}
    # Two layers of 8 to 8 and 8 to 16.
    for kind, models in (("opd", (STUDENT, TEACHER)), ("sft", (STUDENT,))):
        tree = MINIMAL[kind] | {"model": MINIMAL[kind]["model"] | lora}
        found = job_from_spec(parse_tree(tree).spec, *models, device_bytes=None)
        assert found.adapter_params == 2 * 3 * (16 + 24)


@pytest.mark.parametrize(
    ("actor", "model"),
    [
        ({}, {"attn_implementation": "eager"}),
        ({}, {"attn_implementation": "sdpa"}),
        ({"use_remove_padding": False}, {"attn_implementation": "sdpa"}),
    ],
)
def test_padded_rows_and_attention_by_a_matrix_keep_their_micro_batches_and_are_checkpointed(actor, model):
    tree = MINIMAL["opd"] | {"device": "cuda", "actor": actor, "model": MINIMAL["opd"]["model"] | model}
    packed, other = (
        job_from_spec(parse_tree(one).spec, STUDENT, TEACHER, device_bytes=None)
        for one in (MINIMAL["opd"] | {"device": "cuda"}, tree)
    )
    assert (packed.score_is_planned, packed.checkpointing) == (True, None)
    assert (other.score_is_planned, other.checkpointing) == (False, True)
    assert (packed.score_tokens, other.score_tokens) == (MOST_READ_TOKENS, 4 * ROW)


@pytest.mark.parametrize(
    "opd", [{"policy": {"weight": 1.0}}, {"stages": [{"policy_weight": 1.0}]}, {"loss_type": "sampled_reverse_kl"}]
)
def test_a_loss_that_the_fused_kernels_lack_is_planned_with_plain_heads(opd):
    tree = MINIMAL["opd"] | {"device": "cuda", "rollout": {"num_samples": 2}}
    fused, plain = (
        job_from_spec(parse_tree(tree | {"opd": one}).spec, STUDENT, TEACHER, device_bytes=None) for one in ({}, opd)
    )
    assert fused.fused
    assert not plain.fused


def test_a_plan_knows_which_teachers_read_a_row_together():
    tree = {key: value for key, value in MINIMAL["opd"].items() if key != "teacher"}
    tree["teachers"] = {"b": {"path": "t"}, "a": {"path": "u"}, "c": {"path": "v"}}
    tree["route"] = {"to": {"x": "b", "y": "both"}, "blends": {"both": {"weights": {"c": 1, "a": 2}}}}
    found = job_from_spec(parse_tree(tree).spec, STUDENT, TEACHER, STUDENT, TEACHER, device_bytes=None)
    assert found.together == ((1,), (0, 2))
    assert [[shape for shape, _ in some] for some in found.readers] == [[STUDENT], [TEACHER, TEACHER]]
    assert "rows of a blend keep hidden states of 2 teachers" in render(make_plan(found))
