"""A teacher with prompts of its own through the real worker: each token is compared with what the teacher says behind its prompt."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tests.update.batches import uneven_rows
from tests.update.models import VOCAB, save_model
from tests.update.workers import Case, run_cases
from transformers import Qwen3ForCausalLM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CHOSEN = ["opd.importance.tokens.score=entropy", "opd.importance.tokens.ratio=0.5"]
BY_TEACHER = ["opd.importance.tokens.score=divergence", "opd.importance.tokens.ratio=0.5"]
DYNAMIC = [
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=64",
]
SHARED = ["actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"]
NUM_ROWS = 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    sizes = {
        "student": {"hidden": 32, "layers": 2, "rows": 64, "tied": False, "seed": 1},
        "teacher": {"hidden": 48, "layers": 3, "rows": 96, "tied": False, "seed": 2},
    }
    return {name: save_model(base / name, **size) for name, size in sizes.items()}


def _rows() -> list[dict]:
    """Rows whose teacher reads a longer prompt, a shorter one or the same, none of them of the student's length and content alike."""
    rng = random.Random(7)
    rows = uneven_rows(NUM_ROWS)
    for number, row in enumerate(rows):
        hint = [rng.randrange(3, VOCAB) for _ in range(1 + 3 * number)]
        row["teacher_prompt"] = [hint[0]] if number == 3 else row["prompt"] + (hint if number else [])
    return rows


def _case(folders, *overrides, **cut) -> Case:
    how = {"rows": _rows(), "shown": tuple(range(NUM_ROWS))} | cut
    return Case(student=folders["student"], teacher=folders["teacher"], overrides=list(overrides), **how)


def _two_teachers(folders, **cut) -> Case:
    """One model twice, each with half of the rows."""
    rows = [row | {"teacher": place % 2} for place, row in enumerate(_rows())]
    both = {"a": folders["teacher"], "b": folders["teacher"]}
    return _case(folders, teachers=both, rows=rows, shown=(), **cut)


@pytest.fixture(scope="module")
def one_rank(folders) -> dict[str, dict]:
    cases = {
        "packed": _case(folders),
        "padded": _case(folders, remove_padding=False, micro_batch=4),
        "8 micro-batches": _case(folders, micro_batch=1),
        "token budget": _case(folders, *DYNAMIC),
        "left to the plan": _case(folders, sets=["actor.param_offload=auto"]),
        "two teachers": _two_teachers(folders),
        "chosen by the student": _case(folders, *CHOSEN, micro_batch=2),
        "chosen by the teacher": _case(folders, *BY_TEACHER, micro_batch=4),
        "an own prompt that is the student's": _case(
            folders, rows=[row | {"teacher_prompt": row["prompt"]} for row in _rows()]
        ),
        "no own prompt": _case(folders, rows=uneven_rows(NUM_ROWS)),
        "a token that the teacher lacks": _case(
            folders,
            rows=[row | ({"teacher_prompt": [3, 61, 4]} if not place else {}) for place, row in enumerate(_rows())],
        ),
    }
    return dict(zip(cases, run_cases(list(cases.values())), strict=True))


@pytest.fixture(scope="module")
def two_ranks(folders) -> dict[str, dict]:
    cases = {
        "packed": _case(folders, micro_batch=4),
        "padded": _case(folders, remove_padding=False, micro_batch=2),
        "8 micro-batches": _case(folders, micro_batch=1),
        "token budget": _case(folders, *DYNAMIC, micro_batch=4),
        "two teachers": _two_teachers(folders, micro_batch=2),
        "a shared sequence": _case(folders, *SHARED, micro_batch=4),
        "chosen by the student": _case(folders, *CHOSEN, micro_batch=2),
        "chosen by the teacher": _case(folders, *BY_TEACHER, micro_batch=4),
        "chosen in a shared sequence": _case(folders, *SHARED, *BY_TEACHER, micro_batch=2),
    }
    return dict(zip(cases, run_cases(list(cases.values()), world=2), strict=True))


def _log_probs(model: Qwen3ForCausalLM, prompt: list[int], response: list[int]) -> torch.Tensor:
    """[response, VOCAB] of one row alone, in float64."""
    ids = torch.tensor([prompt + response])
    return model(input_ids=ids).logits[0, len(prompt) - 1 : -1, :VOCAB].log_softmax(-1)


@pytest.fixture(scope="module")
def reference(folders) -> dict:
    """Reverse KL of each token, each model behind its own prompt, from the logits of whole models in float64."""
    student, teacher = (
        Qwen3ForCausalLM.from_pretrained(folders[name], dtype=torch.float64) for name in ("student", "teacher")
    )
    total, tokens, of_rows = torch.zeros((), dtype=torch.float64), 0.0, {}
    for number, row in enumerate(_rows()):
        mask = torch.tensor(row["mask"], dtype=torch.bool)
        with torch.no_grad():
            wanted = _log_probs(teacher, row["teacher_prompt"], row["response"])
        own = _log_probs(student, row["prompt"], row["response"])
        kl = (own.exp() * (own - wanted)).sum(-1)[mask]
        total, tokens = total + row["weight"] * kl.sum(), tokens + len(kl)
        of_rows[number] = kl.detach().numpy()
    loss = total / tokens
    loss.backward()
    return {"loss": loss.item(), "tokens": tokens, "rows": of_rows, "gradients": {
        name: parameter.grad for name, parameter in student.named_parameters()
    }}  # fmt: skip


CUTS = [(1, cut) for cut in ("packed", "padded", "8 micro-batches", "token budget", "left to the plan", "two teachers")]
CUTS += [
    (2, cut) for cut in ("packed", "padded", "8 micro-batches", "token budget", "two teachers", "a shared sequence")
]


@pytest.mark.parametrize(("world", "cut"), CUTS)
def test_loss_and_gradient_are_those_of_the_teacher_behind_its_own_prompts(reference, one_rank, two_ranks, world, cut):
    found = (one_rank if world == 1 else two_ranks)[cut]
    assert found["metrics"]["opd/loss"] == pytest.approx(reference["loss"], rel=1e-5)
    assert found["metrics"]["opd/num_tokens"] == reference["tokens"]
    for name, expected in reference["gradients"].items():
        difference = (found["gradients"][name].double() - expected).norm()
        assert difference <= 1e-4 * expected.norm(), name


@pytest.mark.parametrize(("world", "cut"), [each for each in CUTS if each[1] != "two teachers"])
def test_each_tokens_divergence_is_that_of_the_same_token_behind_both_prompts(
    reference, one_rank, two_ranks, world, cut
):
    seen = (one_rank if world == 1 else two_ranks)[cut]["seen"].rows
    assert sorted(seen) == [number for number, kl in reference["rows"].items() if len(kl)]
    for number, view in seen.items():
        np.testing.assert_allclose(view.divergence, reference["rows"][number], rtol=2e-4, atol=1e-5)


def test_tokens_are_chosen_by_what_the_teacher_says_behind_its_own_prompt(reference, one_rank, two_ranks):
    cases = [
        one_rank["chosen by the teacher"],
        two_ranks["chosen by the teacher"],
        two_ranks["chosen in a shared sequence"],
    ]
    for found in cases:
        for number, view in found["seen"].rows.items():
            kl = reference["rows"][number]
            assert sorted(view.kept.nonzero()[0]) == sorted(np.argsort(-kl, kind="stable")[: len(kl) // 2])


def test_tokens_that_the_student_chooses_are_compared_at_their_own_places(reference, one_rank, two_ranks):
    for found in (one_rank["chosen by the student"], two_ranks["chosen by the student"]):
        for number, view in found["seen"].rows.items():
            kept = view.kept
            assert kept.sum() == len(kept) // 2
            np.testing.assert_allclose(view.divergence[kept], reference["rows"][number][kept], rtol=2e-4, atol=1e-5)


def test_an_own_prompt_that_is_the_students_changes_no_bit(one_rank):
    same, none = one_rank["an own prompt that is the student's"], one_rank["no own prompt"]
    assert same["metrics"]["opd/loss"] == none["metrics"]["opd/loss"]
    for name, weight in none["weights"].items():
        assert torch.equal(same["weights"][name], weight), name


def test_a_row_whose_own_prompt_has_a_token_that_the_teacher_lacks_trains_nothing(one_rank, reference):
    found = one_rank["a token that the teacher lacks"]["metrics"]
    left_out = len(reference["rows"][0])
    assert found["opd/unshared_tokens"] == left_out > 0
    assert found["opd/num_tokens"] == reference["tokens"] - left_out
