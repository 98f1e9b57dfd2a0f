"""Several teachers through the real worker: each row's loss and gradient are those of its own teacher, however the batch is cut."""

from __future__ import annotations

import pytest
import torch
from tests.update.batches import uneven_rows
from tests.update.models import VOCAB, save_model
from tests.update.workers import NOT_COMPARED, Case, run_cases
from transformers import Qwen3ForCausalLM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TOKENS = "opd.importance.tokens"
CHOSEN = [f"{TOKENS}.score=divergence", f"{TOKENS}.ratio=0.5"]
DYNAMIC = [
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=48",
]
NAMES = ("long", "wide")
# Five rows of the first, three of the other; of two ranks one has four and none, so that it reads rows of no use.
OWN = (0, 0, 0, 0, 1, 0, 1, 1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    sizes = {
        "student": {"hidden": 32, "layers": 2, "rows": 64, "tied": False, "seed": 1},
        "long": {"hidden": 48, "layers": 3, "rows": 96, "tied": False, "seed": 2},
        "wide": {"hidden": 64, "layers": 1, "rows": 80, "tied": True, "seed": 3},
        "other": {"hidden": 48, "layers": 1, "rows": 96, "tied": False, "seed": 4},
    }
    return {name: save_model(base / name, **size) for name, size in sizes.items()}


def _rows(own=OWN, weights=None) -> list[dict]:
    rows = [row | {"teacher": number} for row, number in zip(uneven_rows(len(own)), own, strict=True)]
    return [row | {"weight": row["weight"] * (1 if weights is None else weights[row["teacher"]])} for row in rows]


def _case(folders, *overrides, wide="wide", rows=None, **cut) -> Case:
    teachers = {"wide": folders[wide], "long": folders["long"]}
    return Case(
        student=folders["student"], teacher="", teachers=teachers, rows=_rows() if rows is None else rows,
        overrides=list(overrides), **cut,
    )  # fmt: skip


@pytest.fixture(scope="module")
def one_rank(folders) -> dict[str, dict]:
    cases = {
        "all": _case(folders),
        "padded": _case(folders, remove_padding=False, micro_batch=4),
        "8 micro-batches": _case(folders, micro_batch=1),
        "token budget": _case(folders, *DYNAMIC),
        "left to the plan": _case(folders, sets=["actor.param_offload=auto"]),
        "rows of the first only": _case(folders, rows=_rows(weights=(1, 0))),
        "rows of the first only, another second": _case(folders, rows=_rows(weights=(1, 0)), wide="other"),
        "chosen": _case(folders, *CHOSEN, micro_batch=2),
        "both the same": _case(folders, wide="long", num_steps=2),
        "long alone": Case(student=folders["student"], teacher=folders["long"], rows=_rows(), num_steps=2),
    }
    return dict(zip(cases, run_cases(list(cases.values())), strict=True))


@pytest.fixture(scope="module")
def two_ranks(folders) -> dict[str, dict]:
    cases = {
        "all": _case(folders, micro_batch=4),
        "8 micro-batches": _case(folders, micro_batch=1),
        "padded": _case(folders, remove_padding=False, micro_batch=2),
        "token budget": _case(folders, *DYNAMIC, micro_batch=4),
        "chosen": _case(folders, *CHOSEN, micro_batch=2),
    }
    return dict(zip(cases, run_cases(list(cases.values()), world=2), strict=True))


def _log_probs(model: Qwen3ForCausalLM, row: dict) -> torch.Tensor:
    """[response, VOCAB] of one row alone, in float64."""
    ids = torch.tensor([row["prompt"] + row["response"]])
    logits = model(input_ids=ids).logits[0, len(row["prompt"]) - 1 : -1, :VOCAB]
    return logits.log_softmax(-1)


@pytest.fixture(scope="module")
def reference(folders) -> dict:
    """Reverse KL of every row from its own teacher, from the logits of whole models in float64."""
    student, *teachers = (
        Qwen3ForCausalLM.from_pretrained(folders[name], dtype=torch.float64) for name in ("student", *NAMES)
    )
    rows = _rows()
    total, sums = torch.zeros((), dtype=torch.float64), {}
    for row in rows:
        mask = torch.tensor(row["mask"], dtype=torch.float64)
        with torch.no_grad():
            wanted = _log_probs(teachers[row["teacher"]], row)
        own = _log_probs(student, row)
        kl = ((own.exp() * (own - wanted)).sum(-1) * mask).sum()
        total = total + row["weight"] * kl
        found = sums.setdefault(NAMES[row["teacher"]], {"divergence": 0.0, "tokens": 0.0, "rows": 0.0})
        found["divergence"] += kl.item()
        found["tokens"] += mask.sum().item()
        found["rows"] += float(mask.any())
    loss = total / sum(found["tokens"] for found in sums.values())
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in student.named_parameters()}
    for found in sums.values():
        found["divergence"] /= found["tokens"]
    return {"loss": loss.item(), "gradients": gradients, "teachers": sums}


CUTS = [(1, "all"), (1, "padded"), (1, "8 micro-batches"), (1, "token budget"), (1, "left to the plan")]
CUTS += [(2, "all"), (2, "padded"), (2, "8 micro-batches"), (2, "token budget")]


@pytest.mark.parametrize(("world", "cut"), CUTS)
def test_loss_gradient_and_metrics_are_those_of_each_rows_own_teacher(reference, one_rank, two_ranks, world, cut):
    found = (one_rank if world == 1 else two_ranks)[cut]
    assert found["metrics"]["opd/loss"] == pytest.approx(reference["loss"], rel=1e-5)
    for name, expected in reference["gradients"].items():
        difference = (found["gradients"][name].double() - expected).norm()
        assert difference <= 1e-4 * expected.norm(), name
    for name, expected in reference["teachers"].items():
        for of, value in expected.items():
            assert found["metrics"][f"opd/teacher/{name}/{of}"] == pytest.approx(value, rel=1e-5), (name, of)


def test_rows_of_weight_zero_reach_no_head_and_their_teacher_changes_no_gradient(one_rank):
    one, other = (one_rank[f"rows of the first only{more}"] for more in ("", ", another second"))
    assert one["metrics"]["opd/teacher/wide/divergence"] == other["metrics"]["opd/teacher/wide/divergence"] == 0.0
    for name, gradient in one["gradients"].items():
        assert torch.equal(gradient, other["gradients"][name]), name


def test_two_teachers_of_one_model_train_as_one_does(one_rank):
    found, alone = one_rank["both the same"], one_rank["long alone"]
    for key, value in alone["metrics"].items():
        if not key.startswith(("timing", "perf", *NOT_COMPARED)):
            assert found["metrics"][key] == pytest.approx(value, rel=1e-4, abs=1e-7), key
    assert found["metrics"]["opd/teacher_pairs"] == alone["metrics"]["opd/teacher_pairs"]


def test_tokens_are_chosen_among_those_of_all_teachers(one_rank, two_ranks):
    found = one_rank["chosen"]["metrics"]
    assert found["opd/num_tokens"] == sum(found[f"opd/teacher/{name}/tokens"] for name in NAMES)
    assert found["opd/num_tokens"] < one_rank["all"]["metrics"]["opd/num_tokens"]
    for name in NAMES:
        assert found[f"opd/teacher/{name}/divergence"] > one_rank["all"]["metrics"][f"opd/teacher/{name}/divergence"]
    for key in ("opd/loss", "opd/grad_norm", *(f"opd/teacher/{name}/divergence" for name in NAMES)):
        assert two_ranks["chosen"]["metrics"][key] == pytest.approx(found[key], rel=1e-5), key


def test_each_teacher_waits_on_the_host_but_in_its_own_pass(one_rank):
    assert one_rank["all"]["places"]["student"]["teacher"] == "offloaded"
    assert one_rank["all"]["places"]["done"]["teacher"] == "offloaded"
