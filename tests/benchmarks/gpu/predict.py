"""What the memory plan and its pace say of the GPU runs of this repository on one H200: written down before they are made.

`python -m tests.benchmarks.gpu.predict` prints the table and writes `predicted.json`, beside which a run's own numbers are set.
The runs of tiny models (toy, agent, grpo, eval) have no step that work decides, and are not in it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from tests.benchmarks.gpu.bench_step import ALL_PHASES, NUM_PROMPTS, SPEC
from tests.benchmarks.gpu.phases import Phase
from tests.benchmarks.gpu.worker_alone import QWEN3_1_7B, QWEN3_8B
from tests.gpu_smoke import assets, smoke
from verl.utils.seqlen_balancing import rearrange_micro_batches

from opd.config import OpdSpec
from opd.config.load import load_spec
from opd.config.parse import parse_tree
from opd.memory.device import product_bytes
from opd.memory.job import GIB
from opd.memory.pace import make_pace, product_rates
from opd.memory.phases import Phase as MemoryPhase
from opd.memory.phases import phases_of
from opd.memory.plan import Plan, make_plan
from opd.memory.shapes import ModelShape, shape_of
from opd.memory.sources import job_from_spec

GPU = "NVIDIA H200"
HERE = Path(__file__).resolve().parent
TOY_PROMPT_TOKENS = 14


def predicted(
    spec: OpdSpec,
    student: ModelShape,
    teacher: ModelShape,
    lengths: list[int],
    *,
    prompt_tokens: int = TOY_PROMPT_TOKENS,
) -> dict[str, Any]:
    """Seconds of a step's parts, and GiB that the trainer's process allocates at most with these lengths."""
    plan = make_plan(job_from_spec(spec, student, teacher, device_bytes=product_bytes(GPU)))
    rates = product_rates(GPU)
    assert rates is not None
    pace = make_pace(plan, rates, lengths, prompt_tokens=prompt_tokens, num_ranks=1)
    parts = {name: round(value, 2) for name, value in dataclasses.asdict(pace).items() if value}
    longest = largest_micro_batch([prompt_tokens + length for length in lengths], plan)
    phases = phases_of(plan.job, dataclasses.replace(plan.choice, train_tokens=longest))
    return {"step_s": round(pace.step, 2), "parts_s": parts, "allocated_gib": round(allocated(phases) / GIB, 1)}


def largest_micro_batch(rows: Sequence[int], plan: Plan) -> int:
    """Tokens of the largest micro-batch that verl cuts an update's rows into, of these tokens each: at most as many as the plan says."""
    found = 0
    for start in range(0, len(rows), plan.job.mini_rows):
        update = rows[start : start + plan.job.mini_rows]
        ids = torch.nested.as_nested_tensor([torch.zeros(row, dtype=torch.int8) for row in update], layout=torch.jagged)
        batch = TensorDict({"input_ids": ids}, batch_size=[len(update)])
        _, cut = rearrange_micro_batches(batch, max_token_len=plan.choice.train_tokens)
        found = max(found, *(sum(update[place] for place in places) for places in cut))
    return found


def allocated(phases: Iterable[MemoryPhase]) -> int:
    """The largest phase of what torch allocates in the trainer's process: without reserve and rollout server."""
    apart = ("reserve", "rollout server")
    return max(phase.total - sum(phase.parts.get(name, 0) for name in apart) for phase in phases)


def of_phase(phase: Phase) -> dict[str, Any]:
    data = SPEC["data"] | {"max_response_length": phase.tokens}
    rollout = SPEC["rollout"] | {"num_samples": phase.rows // NUM_PROMPTS}
    paths = {"model": {"path": "student"}, "teacher": {"path": "teacher"}}
    spec = parse_tree(SPEC | paths | {"name": "step", "data": data, "rollout": rollout}).spec
    assert isinstance(spec, OpdSpec)
    student, teacher = (shape_of(shape.config().to_dict(), "shape") for shape in (QWEN3_1_7B, QWEN3_8B))
    lengths = [phase.length(2, row // 4, row % 4) for row in range(phase.rows)]
    return predicted(spec, student, teacher, lengths)


def _smoke_shape(shape: assets.Shape) -> ModelShape:
    return ModelShape(
        vocab_rows=assets.NUM_VOCAB,
        hidden=shape.hidden_size,
        layers=shape.num_layers,
        intermediate=3 * shape.hidden_size,
        num_heads=assets.NUM_HEADS,
        num_kv_heads=assets.NUM_KV_HEADS,
        head_dim=assets.HEAD_DIM,
        tied=False,
        qk_norm=True,
    )


def of_smoke() -> dict[str, Any]:
    """Of the smoke run `opd` (the runs on chosen tokens train on fewer)."""
    spec = load_spec(str(smoke.SPECS["opd"]), env={}, sets=[], overrides=[]).spec
    assert isinstance(spec, OpdSpec)
    rows = spec.data.train_batch_size * spec.rollout.num_samples
    lengths = [spec.data.max_response_length] * rows
    return predicted(spec, _smoke_shape(assets.STUDENT), _smoke_shape(assets.TEACHER), lengths)


def main() -> None:
    found = {name: of_phase(phase) for name, phase in ALL_PHASES.items()} | {"gpu-smoke: opd": of_smoke()}
    for name, numbers in found.items():
        print(f"{name:22s}", numbers)
    (HERE / "predicted.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
