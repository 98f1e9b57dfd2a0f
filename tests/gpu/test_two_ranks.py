"""Two GPUs and NCCL through the worker: two ranks give what one rank gives, with tied and untied heads.

`tests/update` runs the fp32 cases on gloo. In bf16 sequences are shared through torch's flash attention and compiled layers.
"""

import random
from typing import Any

import pytest
from tests.gpu import needs
from tests.update.exact import ULYSSES, check_gradients, cut
from tests.update.models import VOCAB, save_model, uneven_rows
from tests.update.workers import Case, row, run_cases

pytestmark = pytest.mark.timeout(900)
needs.devices(2, "two ranks over NCCL need two CUDA devices")

ROLE = "actor_rollout_ref"
LENGTH = ["opd.max_length=256"]
PACKED = [f"+{ROLE}.model.override_config.attn_implementation=varlen", "opd.teacher.dtype=bf16", *LENGTH]
COMPILED = [f"{ROLE}.{role}.fsdp_config.use_torch_compile=True" for role in ("actor", "ref")]
CHECKPOINTED = [f"{ROLE}.model.enable_gradient_checkpointing=True"]
PACKED_MODES = (ULYSSES, ULYSSES + COMPILED, ULYSSES + COMPILED + CHECKPOINTED)
MAX_OF_ROUNDING = 1.5
"""A two-rank run sums in another order; a token that saw a wrong row or head would be off by tens of per cent."""
RESPONSE_LENGTHS = (5, 130, 1, 200, 64, 77, 128, 19)
"""The cut between two ranks falls inside rows, and rows are longer than a flash kernel's tile."""


def long_rows() -> list[dict[str, Any]]:
    """Return rows for the packed attention, one of them with a span of tool tokens."""
    rng = random.Random(3)
    rows = []
    for i, length in enumerate(RESPONSE_LENGTHS):
        mask = [0 if i == 3 and 40 <= place < 90 else 1 for place in range(length)]
        prompt, response = ([rng.randrange(3, VOCAB) for _ in range(count)] for count in (4 + i, length))
        rows.append(row(prompt, response, mask, weight=0.5 + i / 8))
    return rows


def distance(found: dict, expected: dict) -> float:
    """Return the relative error of all gradients together."""
    assert "error" not in found, found["error"]
    pairs = [(found["gradients"][name], gradient) for name, gradient in expected["gradients"].items()]
    return float(sum((a - b).square().sum() for a, b in pairs) / sum(b.square().sum() for _, b in pairs)) ** 0.5


@pytest.mark.parametrize("tied", [False, True])
def test_in_fp32_data_and_sequence_parallel_updates_have_the_gradients_of_one_rank(tmp_path, tied):
    student = save_model(tmp_path / "s", hidden=32, layers=2, rows=64, tied=tied, seed=1)
    teacher = save_model(tmp_path / "t", hidden=48, layers=3, rows=96, tied=tied, seed=2)
    case = Case(student=student, teacher=teacher, rows=uneven_rows(), device="cuda")
    [alone] = run_cases([case])
    for found in run_cases([cut(case, micro_batch=2, overrides=mode) for mode in ([], ULYSSES)], world=2):
        assert "error" not in found, found["error"]
        check_gradients(found, alone["gradients"], 1e-5)


def test_in_bf16_shared_sequences_are_no_further_from_fp32_than_the_rounding_of_one_rank(tmp_path):
    student = save_model(tmp_path / "s", hidden=64, layers=3, rows=64, tied=False, seed=3)
    teacher = save_model(tmp_path / "t", hidden=96, layers=3, rows=64, tied=False, seed=4)
    case = Case(student=student, teacher=teacher, rows=long_rows(), device="cuda")
    packed = cut(case, micro_batch=4, overrides=PACKED, sets=["actor.dtype=bf16"])
    exact, rounded = run_cases([cut(case, overrides=LENGTH), packed])
    for found in run_cases([cut(packed, overrides=mode) for mode in PACKED_MODES], world=2):
        assert distance(found, exact) <= MAX_OF_ROUNDING * distance(rounded, exact)
