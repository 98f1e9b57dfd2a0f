"""Times, memory and errors on a CUDA device, all relative to what the same process measures at the same time."""

import random
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

FLOOR_SIDE = 8192
Step = Callable[[], tuple[Tensor, Tensor]]
"""Forward and backward of one candidate: (d loss / d student hidden, d loss / d student head)."""


class Floor:
    """Time of the four products at the rate of an 8192^3 bf16 `torch.mm` on random data."""

    def __init__(self) -> None:
        self.left, self.right = (torch.randn(FLOOR_SIDE, FLOOR_SIDE, device="cuda").bfloat16() for _ in range(2))
        self.out = torch.empty_like(self.left)

    def run(self, flop: float) -> Callable[[], None]:
        """About as many products as `flop` needs, so that a visit heats the device as long as a candidate's does."""
        count = self.count(flop)

        def products() -> None:
            for _ in range(count):
                torch.mm(self.left, self.right.T, out=self.out)

        return products

    @staticmethod
    def count(flop: float) -> int:
        return max(1, round(flop / (2 * FLOOR_SIDE**3)))


def products_flop(tokens: int, vocab: int, student_width: int, teacher_width: int) -> float:
    """Teacher logits once; student logits and both of its gradients."""
    return 2.0 * tokens * vocab * (teacher_width + 3 * student_width)


def elapsed_ms(step: Callable[[], object]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def against_floor(step: Step, floor: Floor, flop: float, *, rounds: int) -> dict[str, float]:
    """Return median times of a step that takes turns with the floor, and the floor's rate.

    A Hopper GPU at its power limit runs the same product 20 % slower than after a pause. So the device is kept hot, as a
    training run does, and step and floor are compared within a round, in random order.
    """
    run_floor, shuffle = floor.run(flop), random.Random(0)
    step()
    warm = time.monotonic()
    while time.monotonic() - warm < 1.0:
        run_floor()
        torch.cuda.synchronize()
    calls: list[Callable[[], object]] = [run_floor, step]
    taken: list[tuple[float, float]] = []
    for _ in range(rounds):
        order = shuffle.sample(range(2), 2)
        found = {place: elapsed_ms(calls[place]) for place in order}
        taken.append((found[0], found[1]))
    whole_flop = Floor.count(flop) * 2 * FLOOR_SIDE**3  # the floor's products are a whole number
    ratios = [own * whole_flop / (of_floor * flop) for of_floor, own in taken]
    return {
        "ms": statistics.median(own for _, own in taken),
        "floor_ratio": statistics.median(ratios),
        "floor_ratio_min": min(ratios),
        "floor_ratio_max": max(ratios),
        "floor_tflops": whole_flop / statistics.median(of_floor for of_floor, _ in taken) / 1e9,
    }


def peak_gib(step: Step) -> float:
    """Peak of one run beyond what is allocated before it, minus the two gradients it returns, in GiB."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients = step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before - sum(gradient.nbytes for gradient in gradients)
    return peak / 2**30


def relative_errors(step: Step, reference: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """||gradient - reference|| / ||reference|| of both gradients, block by block in float64."""
    errors = []
    for gradient, exact in zip(step(), reference, strict=True):
        blocks = zip(gradient.split(16384), exact.split(16384), strict=True)
        difference = sum(float((g.double() - e).square().sum()) for g, e in blocks)
        errors.append((difference / float(exact.square().sum())) ** 0.5)
    return errors[0], errors[1]
