"""Times, memory and errors on a CUDA device, all relative to what the same process measures at the same time."""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

FLOOR_SIDE = 8192
Step = Callable[[], tuple[Tensor, Tensor]]
"""Forward and backward of one candidate: (d loss / d student hidden, d loss / d student head)."""


@dataclass(kw_only=True)
class Timing:
    """One candidate's times in the round robin, each with the floor of its round."""

    milliseconds: list[float] = field(default_factory=list)
    floor_ratios: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        return {
            "ms": statistics.median(self.milliseconds),
            "floor_ratio": statistics.median(self.floor_ratios),
            "floor_ratio_min": min(self.floor_ratios),
            "floor_ratio_max": max(self.floor_ratios),
        }


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


def round_robin(
    steps: dict[str, Callable[[], object]], floor: Floor, flop: float, *, rounds: int, idle_s: float = 0.0
) -> tuple[dict[str, dict[str, float]], float]:
    """Median times of candidates that take turns in random order, and the floor's rate in TFLOP/s.

    A Hopper GPU at its power limit runs the same product 20 % slower than after a pause. So candidates and floor are
    compared within a round. `idle_s` = 0 keeps the device hot, as a training run does; else each visit follows a pause of
    that length.
    """
    order = ["floor", *steps]
    scale = flop / (Floor.count(flop) * 2 * FLOOR_SIDE**3)  # the floor's products are a whole number
    timings = {name: Timing() for name in order}
    run_floor = floor.run(flop)
    for step in steps.values():
        step()
    if not idle_s:
        warm = time.monotonic()
        while time.monotonic() - warm < 1.0:
            run_floor()
            torch.cuda.synchronize()
    shuffle = random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        taken: dict[str, float] = {}
        for name in order:
            if idle_s:
                torch.cuda.synchronize()
                time.sleep(idle_s)
            taken[name] = elapsed_ms(run_floor if name == "floor" else steps[name])
        for name, milliseconds in taken.items():
            timings[name].milliseconds.append(milliseconds)
            timings[name].floor_ratios.append(milliseconds / (taken["floor"] * scale))
    rate = Floor.count(flop) * 2 * FLOOR_SIDE**3 / statistics.median(timings.pop("floor").milliseconds) / 1e9
    return {name: timing.summary() for name, timing in timings.items()}, rate


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
