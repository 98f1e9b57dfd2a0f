"""Prints the memory plan of a spec (`opd.launch EXP.yaml --plan`), with nothing started and no weights read."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from opd.config import Loaded, OpdAgentSpec, OpdSpec, SftSpec, SpecError
from opd.config.context import context_problems
from opd.config.rules.terms import carried_sizes
from opd.config.sections import Model, Teacher
from opd.errors import StoreUnavailable
from opd.memory.device import declared_bytes, declared_name, local_bytes, product_name
from opd.memory.pace import PRODUCT_RATES, Rates, make_pace, product_rates, render_pace, response_lengths
from opd.memory.plan import Plan, make_plan
from opd.memory.shapes import ModelShape, Unplannable, read_shape
from opd.memory.sources import PlannedSpec, job_from_spec
from opd.memory.table import render

EXIT_REFUSED = 2


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a spec does not say of its run.

    Attributes:
        response_tokens: mean length of a response; None: each is as long as it may be.
        price: of one GPU for an hour; None: no cost is told.
    """

    response_tokens: float | None = None
    price: float | None = None


def run(loaded: Loaded, expected: Expected = Expected()) -> int:
    """Print the plan and the pace; 0 if it fits (or the device is not known), 2 if it does not or cannot be made, 1 if a store is away."""
    spec = loaded.spec
    if not isinstance(spec, PlannedSpec):
        print(
            f"opd.launch: --plan sizes distillation and supervised fine-tuning (kind opd, opd-agent, sft); kind {spec.kind} has no plan",
            file=sys.stderr,
        )
        return EXIT_REFUSED
    try:
        student = _shape("model.path", spec.model)
        named = {} if isinstance(spec, SftSpec) else spec.named_teachers
        teachers = [_shape(f"{key}.path", teacher) for key, teacher in named.items()]
    except Unplannable as error:
        print(f"opd.launch: --plan: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except StoreUnavailable as error:
        print(f"opd.launch: --plan: {error}", file=sys.stderr)
        return error.exit_code
    if problems := list(context_problems(spec, student.context)):
        print(SpecError(problems, origin=loaded.origin), file=sys.stderr)
        return EXIT_REFUSED
    device_bytes = None
    if spec.device == "cuda":
        asked = None if isinstance(spec, SftSpec) else spec.opd.gpu_memory_gib
        device_bytes = declared_bytes(asked, loaded.chart) or local_bytes()
    plan = make_plan(job_from_spec(spec, student, *teachers, device_bytes=device_bytes))
    print(render(plan, gpu_name=declared_name(loaded.chart) if spec.device == "cuda" else None))
    rates = product_rates(product_name(loaded.chart) or "") if spec.device == "cuda" else None
    if rates is not None and not isinstance(spec, SftSpec):
        print("\n".join(_pace(spec, plan, rates, expected)))
    elif expected != Expected():
        known = ", ".join(part for part, _ in PRODUCT_RATES)
        print(
            f"no time of a step, and so no cost: they are told of kind opd and opd-agent on a GPU of the table ({known})"
        )
    return 0 if plan.fits else EXIT_REFUSED


def _shape(key: str, model: Model | Teacher) -> ModelShape:
    try:
        return read_shape(model.path, revision=model.revision)
    except Unplannable as error:
        raise Unplannable(f"{key}: {error}") from error


def _pace(spec: OpdSpec | OpdAgentSpec, plan: Plan, rates: Rates, expected: Expected) -> list[str]:
    num_ranks = spec.trainer.nnodes * spec.trainer.gpus_per_node
    rows = spec.data.train_batch_size * spec.rollout.num_samples
    longest = spec.data.max_response_length
    lengths = response_lengths(rows, longest=longest, mean=expected.response_tokens)
    carried = carried_sizes(spec)[0] if spec.rollout.schedule == "carry" else None
    pace = make_pace(
        plan,
        rates,
        lengths,
        prompt_tokens=spec.data.max_prompt_length,
        num_ranks=num_ranks,
        in_flight=carried,
        keeps_prefixes=spec.rollout.keep_prefixes,
    )
    lines = []
    if expected.response_tokens is not None and expected.response_tokens > longest:
        lines.append(
            f"--response-tokens {expected.response_tokens:g} is above data.max_response_length {longest}, where responses are cut"
        )
    lines += render_pace(pace, rates, num_ranks=num_ranks, num_steps=spec.trainer.total_steps, price=expected.price)
    if carried is not None:
        lines.append(
            f"rollout.schedule carry: {carried} responses at once, of which an update takes the first {rows} that are complete; the warm "
            "fill before the first update, about as long as the longest response takes, is not counted"
        )
    return lines
