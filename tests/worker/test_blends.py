"""Blends of teachers through the real worker: loss, gradient and metrics are those of a float64 reference, however the batch is cut."""

from __future__ import annotations

import pytest
import torch
from tests.worker.batches import uneven_rows
from tests.worker.models import VOCAB, save_model
from tests.worker.test_teachers import CHOSEN, DYNAMIC
from tests.worker.workers import NOT_COMPARED, Case, run_cases
from transformers import Qwen3ForCausalLM

from opd.losses import divergence

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# In the order of their numbers: the teachers, then the blends.
NAMES = ("long", "wide", "both", "means")
BLENDS = {"both": ("mixture", {"wide": 1.0, "long": 3.0}), "means": ("sum", {"wide": 3.0, "long": 2.0})}
SHARES = {"long": (1.0, 0.0), "wide": (0.0, 1.0), "both": (0.75, 0.25), "means": (0.4, 0.6)}
# On two ranks only one has rows of "long" alone, and of the sum.
OWN = (2, 0, 2, 1, 3, 2, 3, 1)
BETA, TEMPERATURE = 0.3, 0.8
JSD = ["opd.loss_type=jsd", f"opd.beta={BETA}", f"rollout.temperature={TEMPERATURE}"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    sizes = {
        "student": {"hidden": 32, "layers": 2, "rows": 64, "tied": False, "seed": 1},
        "long": {"hidden": 48, "layers": 3, "rows": 96, "tied": False, "seed": 2},
        "wide": {"hidden": 64, "layers": 1, "rows": 80, "tied": True, "seed": 3},
    }
    return {name: save_model(base / name, **size) for name, size in sizes.items()}


def _rows(own=OWN) -> list[dict]:
    return [row | {"teacher": number} for row, number in zip(uneven_rows(len(own)), own, strict=True)]


def _case(folders, *overrides, own=OWN, wide="wide", blends=BLENDS, sets=(), **cut) -> Case:
    teachers = {"wide": folders[wide], "long": folders["long"]}
    return Case(
        student=folders["student"], teacher="", teachers=teachers, blends=blends, rows=_rows(own),
        overrides=list(overrides), sets=list(sets), **cut,
    )  # fmt: skip


@pytest.fixture(scope="module")
def one_rank(folders) -> dict[str, dict]:
    cases = {
        "all": _case(folders),
        "padded": _case(folders, remove_padding=False, micro_batch=4),
        "8 micro-batches": _case(folders, micro_batch=1),
        "token budget": _case(folders, *DYNAMIC),
        "jsd": _case(folders, sets=JSD),
        "forward_kl": _case(folders, sets=["opd.loss_type=forward_kl"], micro_batch=2),
        "chosen": _case(folders, *CHOSEN, micro_batch=2),
        "blends of equal teachers": _case(folders, wide="long", own=(2, 3) * 4, num_steps=2),
        "blends of one teacher": _case(
            folders,
            own=(2, 3) * 4,
            num_steps=2,
            blends={"both": ("mixture", {"long": 5.0}), "means": ("sum", {"long": 0.5})},
        ),
        "long alone": Case(student=folders["student"], teacher=folders["long"], rows=_rows((0,) * 8), num_steps=2),
    }
    return dict(zip(cases, run_cases(list(cases.values())), strict=True))


@pytest.fixture(scope="module")
def two_ranks(folders) -> dict[str, dict]:
    cases = {
        "all": _case(folders, micro_batch=4),
        "padded": _case(folders, remove_padding=False, micro_batch=2),
        "8 micro-batches": _case(folders, micro_batch=1),
        "token budget": _case(folders, *DYNAMIC, micro_batch=4),
        "jsd": _case(folders, sets=JSD, micro_batch=4),
        "chosen": _case(folders, *CHOSEN, micro_batch=2),
    }
    return dict(zip(cases, run_cases(list(cases.values()), world=2), strict=True))


def _logits(model: Qwen3ForCausalLM, row: dict) -> torch.Tensor:
    """[response, VOCAB] of one row alone."""
    ids = torch.tensor([row["prompt"] + row["response"]])
    return model(input_ids=ids).logits[0, len(row["prompt"]) - 1 : -1, :VOCAB]


def _of_row(name: str, own: torch.Tensor, teachers: list[torch.Tensor], kind: str, temperature: float) -> torch.Tensor:
    """[response] divergences by the definition of each form, from whole logits."""
    how = {"beta": BETA, "temperature": temperature}
    if name == "means":
        pairs = zip(SHARES[name], teachers, strict=True)
        return sum(share * divergence(own, logits, kind, **how) for share, logits in pairs)
    mixed = sum(
        share * (logits / temperature).softmax(-1) for share, logits in zip(SHARES[name], teachers, strict=True)
    )
    return divergence(own, mixed.log() * temperature, kind, **how)


@pytest.fixture(scope="module")
def reference(folders):
    """Of a kind and temperature: loss, gradients and counts of every row by its own teacher or blend, in float64."""
    models = [Qwen3ForCausalLM.from_pretrained(folders[name], dtype=torch.float64) for name in ("student", *NAMES[:2])]

    def of(kind: str, temperature: float) -> dict:
        student, *teachers = models
        student.zero_grad()
        total, sums = torch.zeros((), dtype=torch.float64), {}
        for row in _rows():
            mask, name = torch.tensor(row["mask"], dtype=torch.float64), NAMES[row["teacher"]]
            with torch.no_grad():
                wanted = [_logits(teacher, row) for teacher in teachers]
            found = (_of_row(name, _logits(student, row), wanted, kind, temperature) * mask).sum()
            total = total + row["weight"] * found
            count = sums.setdefault(name, {"divergence": 0.0, "tokens": 0.0, "rows": 0.0})
            count["divergence"] += found.item()
            count["tokens"] += mask.sum().item()
            count["rows"] += float(mask.any())
        loss = total / sum(count["tokens"] for count in sums.values())
        loss.backward()
        gradients = {name: parameter.grad.clone() for name, parameter in student.named_parameters()}
        for count in sums.values():
            count["divergence"] /= count["tokens"]
        return {"loss": loss.item(), "gradients": gradients, "readers": sums}

    return of


CUTS = ["all", "padded", "8 micro-batches", "token budget", "jsd"]


@pytest.mark.parametrize(("world", "cut"), [(1, cut) for cut in (*CUTS, "forward_kl")] + [(2, cut) for cut in CUTS])
def test_loss_gradient_and_metrics_are_those_of_each_rows_own_blend(reference, one_rank, two_ranks, world, cut):
    found = (one_rank if world == 1 else two_ranks)[cut]
    is_jsd = cut == "jsd"
    expected = reference(cut if cut in ("jsd", "forward_kl") else "reverse_kl", TEMPERATURE if is_jsd else 1.0)
    assert found["metrics"]["opd/loss"] == pytest.approx(expected["loss"], rel=1e-5)
    for name, gradient in expected["gradients"].items():
        difference = (found["gradients"][name].double() - gradient).norm()
        assert difference <= 1e-4 * gradient.norm(), name
    assert set(expected["readers"]) == set(NAMES)
    for name, counts in expected["readers"].items():
        for of, value in counts.items():
            assert found["metrics"][f"opd/teacher/{name}/{of}"] == pytest.approx(value, rel=1e-5), (name, of)


@pytest.mark.parametrize("blends", ["blends of equal teachers", "blends of one teacher"])
def test_a_blend_that_is_one_teacher_trains_as_that_teacher_does(one_rank, blends):
    found, alone = one_rank[blends], one_rank["long alone"]
    for key, value in alone["metrics"].items():
        if not key.startswith(("timing", "perf", *NOT_COMPARED)):
            assert found["metrics"][key] == pytest.approx(value, rel=1e-4, abs=1e-7), key
    for name, weight in alone["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, rtol=1e-3, atol=1e-5)


def test_hidden_states_of_every_teacher_of_a_blend_are_kept(one_rank):
    tokens = {name: one_rank["all"]["metrics"][f"opd/teacher/{name}/tokens"] for name in NAMES}
    widths = {"long": 48, "wide": 64, "both": 48 + 64, "means": 48 + 64}
    kept = one_rank["all"]["metrics"]["perf/teacher_cache_mb"] * 2**20
    assert kept == 4 * sum(tokens[name] * widths[name] for name in NAMES)


def test_tokens_are_chosen_among_those_of_all_teachers_and_blends(one_rank, two_ranks):
    found = one_rank["chosen"]["metrics"]
    assert found["opd/num_tokens"] == sum(found[f"opd/teacher/{name}/tokens"] for name in NAMES)
    assert found["opd/num_tokens"] < one_rank["all"]["metrics"]["opd/num_tokens"]
    for other in (two_ranks["chosen"],):
        for key in ("opd/loss", "opd/grad_norm", *(f"opd/teacher/{name}/divergence" for name in NAMES)):
            assert other["metrics"][key] == pytest.approx(found[key], rel=1e-5), key
