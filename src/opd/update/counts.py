"""Sums of a step's counts over micro-batches, ranks and updates, and the metrics that every kind has of its updates.

A micro-batch returns sums, maxima and minima only; verl collects them in lists of lists. The driver divides once, so no mean
of means can arise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

Counts = dict[str, Tensor | float]
"""Numbers of a micro-batch by name; a tensor is a scalar on its device."""


def on_host(counts: Mapping[str, list[Tensor | float]]) -> dict[str, list[float]]:
    """Return the numbers of several micro-batches, by one read from the device."""
    on_device = [value.double() for values in counts.values() for value in values if isinstance(value, Tensor)]
    read = iter(torch.stack(on_device).tolist() if on_device else ())
    return {
        name: [next(read) if isinstance(value, Tensor) else value for value in values]
        for name, values in counts.items()
    }


def flatten(value: Any) -> Iterable[float]:
    """Yield the numbers of nested lists, in their order."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from flatten(item)
    else:
        yield float(value)


def exact_sum(values: Iterable[float]) -> float:
    """Return the exact sum; nan where the values hold nan or both infinities, infinite beyond a float's range."""
    values = list(values)
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # fsum raises for 1e308 + 1e308 and for inf - inf
        return sum(values)


def largest(values: Iterable[float]) -> float:
    """Return the largest value, nan where any is: Python's `max` keeps or loses a nan by its place."""
    values = list(values)
    return math.nan if any(map(math.isnan, values)) else max(values)


def totals(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the sums by name.

    Raises:
        ValueError: no update was made at all.
    """
    total = {key: exact_sum(flatten(value)) for key, value in raw.items() if key.startswith("sum/")}
    if "sum/tokens" not in total:
        raise ValueError("the update returned no counts: no mini-batch ran")
    return total


def gradient_norms(raw: Mapping[str, Any]) -> list[float]:
    """Return one gradient norm an update, in their order; not finite where the update was skipped."""
    return list(flatten(raw["grad_norm"]))


def skipped_last(raw: Mapping[str, Any]) -> int:
    """Return the number of updates that were skipped after the last one of the step that was made."""
    return sum(1 for _ in takewhile(lambda norm: not math.isfinite(norm), reversed(gradient_norms(raw))))


def update_metrics(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a step's updates, without a prefix."""
    norms = gradient_norms(raw)
    finite = [norm for norm in norms if math.isfinite(norm)]
    metrics = {
        "num_updates": float(len(norms)),
        "skipped": float(len(norms) - len(finite)),
        "grad_norm": sum(finite) / len(finite) if finite else math.nan,
    }
    # verl's rate is the rate that the schedule has set for the next step.
    return metrics | {name: list(flatten(raw[name]))[-1] for name in ("lr", "lr_used") if name in raw}


def shared_metrics(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a step that kinds without a divergence have in common."""
    metrics = {f"actor/{name}": value for name, value in update_metrics(raw).items()}
    metrics |= {f"actor/{name}": largest(flatten(raw[name])) for name in raw if name.startswith("perf/")}
    metrics |= {name: largest(flatten(raw[name])) for name in raw if name.startswith("timing/")}
    if "mfu" in raw:
        rates = list(flatten(raw["mfu"]))
        metrics["perf/mfu/actor"] = sum(rates) / len(rates)
    return metrics
