"""Lengths of a worker's forwards with a memory plan, and without one."""

from typing import Any

import pytest
from tests.memory.jobs import STUDENT, TEACHER
from tests.minimal import MINIMAL

from opd.experiment import parse_tree
from opd.memory.follow import read_tokens, train_tokens
from opd.memory.plan import make_plan
from opd.memory.sources import MOST_READ_TOKENS, MOST_TRAIN_TOKENS, job_from_spec

ROW = 2048 + 8192


def cuts(*, is_planned: bool, **more: Any) -> tuple[int | None, int | None]:
    """Tokens of a forward without a gradient, and of a micro-batch of the student, on one of two ranks that share sequences."""
    actor = {"ulysses_sequence_parallel_size": 2, "use_remove_padding": True}
    tree = MINIMAL["opd"] | {"device": "cuda", "actor": actor, "trainer": {"gpus_per_node": 2}} | more
    spec = parse_tree(tree).spec
    plan = make_plan(job_from_spec(spec, STUDENT, TEACHER, device_bytes=None)) if is_planned else None
    return read_tokens(spec, plan), train_tokens(spec, plan)


def test_packed_rows_of_a_gpu_are_cut_by_tokens_without_a_plan_too():
    assert cuts(is_planned=False) == (MOST_READ_TOKENS, MOST_TRAIN_TOKENS)


@pytest.mark.parametrize("is_planned", [True, False])
def test_rows_on_a_cpu_are_cut_as_verls_keys_say(is_planned):
    assert cuts(is_planned=is_planned, device="cpu") == (None, None)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tokens_of_the_spec_count_on_every_device_with_a_plan_and_without(device):
    own = {"read_tokens": 20_000, "train_tokens": 10_000}
    for is_planned in (True, False):
        assert cuts(is_planned=is_planned, device=device, opd=own) == (20_000, 10_000)


def test_a_plans_tokens_are_of_all_ranks_that_share_a_sequence():
    read, trained = cuts(is_planned=True, opd={"train_tokens": 1})
    assert read == MOST_READ_TOKENS
    assert trained == ROW // 2, "a row is never cut"
