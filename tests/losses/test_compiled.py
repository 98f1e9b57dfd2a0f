"""The compiled form, on a CPU, against the plain one; and the loss without the folder of the Hopper kernels."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from tests.losses.cases import TOKENS, draw, error, make, run
from tests.processes import output

import opd.losses
from opd.losses import Weights
from opd.losses.chunks import Plan, top_entries

TERMS = ("divergence", "policy", "nll", "entropy")
ALL = {
    "weights": Weights(**{name: draw(TOKENS, place).float() for place, name in enumerate(TERMS)}),
    "advantages": draw(TOKENS, 5).float() - 0.5,
    "old_log_probs": -6 + draw(TOKENS, 6).float(),
    "watch": ("entropy", "teacher_entropy"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["reverse_kl", "jsd", "sampled_reverse_kl", "topk_reverse_kl"])
def test_the_compiled_form_is_the_plain_one(kind):
    found = []
    for backend in ("plain", "compiled"):
        case = make(dtype=torch.float32, rows=(352, 384))
        output = run(case, kind, temperature=0.8, backend=backend, **ALL)
        output.loss.backward()
        found.append((output, case.grad()))
    (plain, grad), (ours, ours_grad) = found
    assert ours.backend == "compiled"
    for name, values in plain.statistics.items():
        torch.testing.assert_close(ours.statistics[name], values, rtol=2e-5, atol=1e-6, msg=name)
    assert [error(a, b.double()) < 1e-5 for a, b in zip(ours_grad, grad, strict=True)] == [True, True]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_compiles_two_shapes_whatever_the_number_of_tokens():
    counters = torch._dynamo.utils.counters
    counters.clear()
    for tokens in (1, 23, 128, 130, 200, 257, 300):
        case = make(tokens=tokens, dtype=torch.float32)
        run(case, backend="compiled", workspace_gib=1e-6).loss.backward()
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("tokens", [1, 127, 128, 1000, 8192, 65537])
@pytest.mark.parametrize("workspace_gib", [0.01, 1.1, 2.6, 4.1])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_chunks_cover_all_tokens_once_within_the_workspace(tokens, workspace_gib, is_compiled):
    sizes = {"bytes_per_row": 8 * 151_680, "gradient_bytes": 2 * 151_680}
    plan = Plan.of(tokens, workspace_gib, **sizes, is_compiled=is_compiled)
    groups = list(plan.groups(tokens))
    chunks = [chunk for group in groups for chunk in group]
    assert [start for start, _, _ in chunks] == [0, *(stop for _, stop, _ in chunks[:-1])]
    assert chunks[-1][1] == tokens
    for group in groups:
        assert sum(rows for _, _, rows in group) <= plan.group + plan.tail
        allowed = {plan.rows, plan.tail} if is_compiled else {plan.rows, group[-1][1] - group[-1][0]}
        assert {rows for _, _, rows in group} <= allowed
    if workspace_gib > 1:
        assert plan.rows * sizes["bytes_per_row"] + plan.group * sizes["gradient_bytes"] <= workspace_gib * 2**30


def test_the_fused_form_takes_three_groups_for_8192_tokens_of_a_large_vocabulary():
    plan = Plan.of(8192, 1.3, bytes_per_row=2 * 151_680 + 8 * 593, gradient_bytes=2 * 151_680, is_compiled=False)
    assert (plan.rows, plan.tail, plan.group) == (1024, 0, 2816)


@pytest.mark.parametrize(("columns", "k"), [(64, 5), (640, 7), (640, 64), (1280, 3)])
def test_the_largest_entries_are_those_of_a_whole_sort(columns, k):
    logits = torch.randn(9, columns, generator=torch.Generator().manual_seed(1))
    found = top_entries(k, logits)
    assert torch.equal(logits.gather(1, found).sort(descending=True).values, logits.topk(k).values)


def test_the_loss_runs_without_the_folder_of_the_kernels(tmp_path):
    package = Path(opd.losses.__file__).parent
    shutil.copytree(package, tmp_path / "opd" / "losses", ignore=shutil.ignore_patterns("hopper", "__pycache__"))
    shutil.copy(package.parent / "head_form.py", tmp_path / "opd")
    (tmp_path / "opd" / "__init__.py").touch()
    code = (
        "import torch, opd.losses.head as head\n"
        "from opd.losses import *\n"
        "h, w, ids = torch.randn(3, 8, requires_grad=True), torch.randn(50, 8), torch.arange(3)\n"
        "targets = HiddenTargets(torch.randn(3, 8), torch.randn(50, 8))\n"
        "head_loss(h, w, ids, Weights(divergence=torch.ones(3)), Loss(), targets=targets).loss.backward()\n"
        "print(head.fused_backend(), h.grad.norm() > 0)\n"
    )
    environment = {"PYTHONPATH": str(tmp_path)}
    assert output(sys.executable, "-c", code, env=environment, timeout=120) == "None tensor(True)\n"
