"""One rank of the vocab-parallel divergence against the whole computation in float64 on one rank; started by tests, or by

    torchrun --nproc_per_node 2 -m tests.losses.vocab_ranks --device cuda

Every rank makes all tokens from one seed, keeps its own share, and compares what it gets with the reference.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass

import torch
from tests.losses.products import ProductSizes
from tests.rank_end import leave
from torch import distributed

from opd.losses import DIVERGENCE_KINDS, chunked_divergence
from opd.losses.vocab_parallel import vocab_parallel_divergence, vocab_shard

STUDENT_ROWS, TEACHER_ROWS, VOCAB = 104, 120, 101  # heads padded to different sizes over a vocabulary that none divides
WIDTHS = (24, 40)


@dataclass(frozen=True)
class Case:
    """How the tokens are spread over ranks and what is computed of them."""

    kind: str
    dtype: torch.dtype = torch.float64
    temperature: float = 1.0
    chunk_size: int = 7
    scale: float = 1.0
    tokens: str = "uneven"
    tolerance: float = 1e-9

    def counts(self, world: int) -> list[int]:
        """Tokens of each rank."""
        return {"uneven": [5 + 4 * r for r in range(world)], "one empty": [9] + [0] * (world - 1)}[self.tokens]


def make(case: Case, total: int, device: torch.device) -> dict[str, torch.Tensor]:
    """All ranks' tokens, both heads."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(device, case.dtype)

    return {
        "student_hidden": normal(total, WIDTHS[0], scale=case.scale),
        "student_weight": normal(STUDENT_ROWS, WIDTHS[0], scale=0.3),
        "teacher_hidden": normal(total, WIDTHS[1], scale=case.scale),
        "teacher_weight": normal(TEACHER_ROWS, WIDTHS[1], scale=0.3),
        "token_weights": torch.rand(total, generator=generator, dtype=torch.float64).to(device).float(),
        "token_ids": torch.randint(-2, VOCAB + 3, (total,), generator=generator).to(device),
    }


def reference(case: Case, inputs: dict[str, torch.Tensor]) -> tuple:
    """The whole batch on one rank in float64: outputs, gradient of hidden states, gradient of the head."""
    wide = {k: v.to(torch.float64, copy=True) if v.is_floating_point() else v for k, v in inputs.items()}
    hidden = wide.pop("student_hidden").requires_grad_()
    weight = wide.pop("student_weight").requires_grad_()
    output = chunked_divergence(
        hidden,
        weight,
        kind=case.kind,
        beta=0.3,
        temperature=case.temperature,
        chunk_size=64,
        valid_vocab=VOCAB,
        **wide,
    )
    output.loss_sum.mul(0.25).backward()
    return output, hidden.grad, weight.grad


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    size = float(expected.norm())
    return float((found.double() - expected).norm()) / size if size else float(found.double().norm())


def check(case: Case, device: torch.device) -> float:
    """Raise AssertionError where the share differs from the reference; returns the largest relative error of a gradient."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    counts = case.counts(world)
    inputs = make(case, sum(counts), device)
    expected, grad_hidden, grad_weight = reference(case, inputs)
    own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    shard = vocab_shard(VOCAB, rank, world)
    hidden = inputs["student_hidden"][own].clone().requires_grad_()
    weight = inputs["student_weight"].clone().requires_grad_()
    output = vocab_parallel_divergence(
        hidden,
        weight[shard],
        inputs["teacher_hidden"][own],
        inputs["teacher_weight"][shard],
        case.kind,
        vocab=VOCAB,
        group=distributed.group.WORLD,
        token_weights=inputs["token_weights"][own],
        beta=0.3,
        temperature=case.temperature,
        chunk_size=case.chunk_size,
        workspace_gib=1.0,
        token_ids=inputs["token_ids"][own],
    )
    output.loss_sum.mul(0.25).backward()
    for name in ("divergence", "student_entropy", "teacher_entropy", "student_log_prob", "teacher_log_prob"):
        found, whole = getattr(output, name).double(), getattr(expected, name)[own]
        torch.testing.assert_close(
            found, whole, rtol=case.tolerance, atol=case.tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert not output.nonfinite.any()
    loss = output.loss_sum.detach().double()
    distributed.all_reduce(loss)
    assert abs(float(loss) / float(expected.loss_sum.detach()) - 1) < case.tolerance
    # Ranks' head gradients are slices: summed, as a data-parallel reduction does, they are the whole.
    whole = weight.grad.to(torch.float64, copy=True)
    distributed.all_reduce(whole)
    errors = [relative(hidden.grad, grad_hidden[own]), relative(whole, grad_weight)]
    assert max(errors) < case.tolerance, errors
    assert not weight.grad[VOCAB:].any()
    return max(errors)


def check_nonfinite(device: torch.device) -> None:
    """A nan in one rank's token is reported there and reaches no other token and no head."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    case = Case("reverse_kl")
    counts = case.counts(world)
    inputs = make(case, sum(counts), device)
    own, shard = slice(sum(counts[:rank]), sum(counts[: rank + 1])), vocab_shard(VOCAB, rank, world)
    hidden = inputs["student_hidden"][own].clone()
    if rank == 0:
        hidden[1, 0] = float("nan")
    hidden.requires_grad_()
    weight = inputs["student_weight"][shard].clone().requires_grad_()
    output = vocab_parallel_divergence(
        hidden,
        weight,
        inputs["teacher_hidden"][own],
        inputs["teacher_weight"][shard],
        "reverse_kl",
        vocab=VOCAB,
        group=distributed.group.WORLD,
        token_weights=inputs["token_weights"][own],
        beta=0.3,
        temperature=1.0,
        chunk_size=6,
        workspace_gib=1.0,
    )
    output.loss_sum.backward()
    assert output.nonfinite.nonzero().flatten().tolist() == ([1] if rank == 0 else [])
    assert torch.isfinite(hidden.grad).all()
    assert torch.isfinite(weight.grad).all()
    assert output.divergence[output.nonfinite].sum() == 0


def check_product_sizes(device: torch.device) -> None:
    """No product runs over this rank's odd share of the entries: cuBLAS would take three times as long."""
    entries = 1271
    shard = vocab_shard(entries, distributed.get_rank(), distributed.get_world_size())
    hidden = torch.ones(8, 16, device=device, requires_grad=True)
    weight = torch.ones(shard.stop - shard.start, 16, device=device, requires_grad=True)
    with ProductSizes() as products:
        vocab_parallel_divergence(
            hidden,
            weight,
            hidden.detach(),
            weight.detach(),
            "reverse_kl",
            vocab=entries,
            group=distributed.group.WORLD,
            token_weights=torch.ones(8, device=device),
            beta=0.5,
            temperature=1.0,
            chunk_size=64,
            workspace_gib=1.0,
        )
    assert products.sizes
    assert not [size for size in products.sizes if size % 8], products.sizes


def cases(device: torch.device) -> list[Case]:
    """Every kind in float64 with uneven tokens, temperature, one chunk and many; fp32; peaked logits; a CUDA device's 16 bits."""
    found = []
    for kind in DIVERGENCE_KINDS:
        found += [
            Case(kind),
            Case(kind, temperature=0.7, chunk_size=1000),
            Case(kind, tokens="one empty", chunk_size=1),
            Case(kind, dtype=torch.float32, tolerance=1e-5),
            # A row that both sides are nearly sure of has a gradient of nearly equal numbers: digits go with the CPU's exp.
            Case(kind, scale=12.0, tolerance=1e-7),
        ]
        if device.type == "cuda":
            found += [Case(kind, dtype=d, tolerance=4e-3) for d in (torch.bfloat16, torch.float16)]
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    name = parser.parse_args(arguments).device
    device = torch.device("cpu") if name == "cpu" else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if name == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if name == "cuda" else "gloo")
    started = time.perf_counter()
    worst = {case: check(case, device) for case in cases(device)}
    check_nonfinite(device)
    check_product_sizes(device)
    if distributed.get_rank() == 0:
        print(
            f"{len(worst)} cases on {distributed.get_world_size()} ranks ({name}) in {time.perf_counter() - started:.1f} s;"
        )
        for dtype in dict.fromkeys(case.dtype for case in worst):
            print(f"  {dtype}: worst gradient {max(e for c, e in worst.items() if c.dtype == dtype):.1e}")
    distributed.barrier()
    leave()


if __name__ == "__main__":
    main(sys.argv[1:])
