"""Times and memory of the whole update, teacher phase and student phase, through the real worker.

A random Qwen3-1.7B-shaped student and Qwen3-8B-shaped teacher on one GPU, 64 rows of 2,048 response tokens
(`make bench-gpu`). Model FLOP: 6 N_student or 2 N_teacher per token, the heads (teacher logits, student logits and both
of their gradients) at loss tokens, causal attention by each row's length; no recomputation. MFU: against the rate of an
8192^3 bf16 product in the same process. Memory: peak beyond weights, gradients and optimizer state.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from tests.benchmarks.gpu.measure import FLOOR_SIDE, Floor, elapsed_ms, products_flop
from tests.benchmarks.gpu.worker_alone import (
    NUM_ENTRIES,
    QWEN3_1_7B,
    QWEN3_8B,
    ROLE,
    make_worker,
    prepare,
    random_rows,
)
from tests.gpu.facts import machine, write_record
from verl.utils import tensordict_utils as tu

from opd.batch import RolloutRows
from opd.worker.opd_worker import OPDWorker
from opd.worker.teacher_phase import TeacherStates

STUDENT, TEACHER = QWEN3_1_7B, QWEN3_8B


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to run our update: overrides of the trainer's config, and rows a micro-batch."""

    settings: tuple[str, ...] = ()
    micro_batch: int = 4


NO_CHECKPOINTING = f"{ROLE}.model.enable_gradient_checkpointing=false"
NOT_COMPILED = tuple(f"{ROLE}.{role}.fsdp_config.use_torch_compile=false" for role in ("actor", "ref"))
FUSED_ADAM = f"{ROLE}.actor.optim.override_optimizer_config={{fused:true}}"
VARIANTS = {
    "checkpointing": Variant(),
    "a third kept": Variant(settings=(NO_CHECKPOINTING, FUSED_ADAM, "opd.activation_budget=0.35", "opd.cache_gib=0")),
    "no checkpointing": Variant(settings=(NO_CHECKPOINTING, FUSED_ADAM)),
    "2 rows": Variant(settings=(NO_CHECKPOINTING,), micro_batch=2),
    "cache on the host": Variant(settings=("opd.cache_gib=0",)),
    "layers not compiled": Variant(settings=NOT_COMPILED),
}


class TimedWorker(OPDWorker):
    """The worker, with the phases' ends waited for, timed and their peaks noted."""

    marks: list[tuple[float, int]]

    def _mark(self) -> None:
        torch.cuda.synchronize()
        self.marks.append((time.perf_counter(), torch.cuda.max_memory_allocated()))
        torch.cuda.reset_peak_memory_stats()

    def _teacher_phase(
        self, data: TensorDict, rows: RolloutRows, own_rows: RolloutRows | None, states: TeacherStates
    ) -> None:
        super()._teacher_phase(data, rows, own_rows, states)
        self._mark()

    def timed_update(self, data: TensorDict) -> tuple[dict[str, Any], dict[str, float]]:
        self.marks = []
        torch.cuda.empty_cache()
        self._mark()
        metrics = tu.get(self.update_opd(data), "metrics")
        self._mark()
        (start, _), (middle, teacher_peak), (end, student_peak) = self.marks
        return metrics, {
            "teacher_s": middle - start, "student_s": end - middle, "update_s": end - start,
            "teacher_peak": teacher_peak, "student_peak": student_peak,
        }  # fmt: skip


def state_bytes(worker: OPDWorker) -> int:
    """Weights of both models, and the student's gradients and optimizer state (fp32, three times its weights)."""
    teacher = sum(p.numel() * p.element_size() for p in worker.teacher_engine.module.parameters())
    student = sum(p.numel() * p.element_size() for p in worker.student_engine.module.parameters())
    return teacher + 4 * student


def model_flop(lengths: list[int], loss_tokens: int) -> dict[str, float]:
    """Of each phase; the teacher's logits are made in the student phase."""
    tokens = sum(lengths)
    heads = products_flop(loss_tokens, NUM_ENTRIES, STUDENT.width, TEACHER.width)
    return {
        "teacher": 2.0 * TEACHER.backbone_parameters * tokens + TEACHER.attention_flop(lengths),
        "student": 6.0 * STUDENT.backbone_parameters * tokens + 3 * STUDENT.attention_flop(lengths) + heads,
    }


def product_rate(floor: Floor, seconds: float) -> float:
    """FLOP/s of the 8192^3 product over about `seconds`, hot."""
    run = floor.run(seconds * 700e12)
    run()
    return floor.count(seconds * 700e12) * 2 * FLOOR_SIDE**3 / elapsed_ms(run) * 1e3


def measure(name: str, folder: Path, arguments: argparse.Namespace, floor: Floor) -> dict[str, Any]:
    """Measure a variant: two updates warm up and compile, then come the timed updates."""
    variant = VARIANTS[name]
    torch.compiler.reset()
    attention = f"{ROLE}.model.override_config.attn_implementation=varlen"
    settings = {text.split("=")[0]: text for text in (attention, *variant.settings)}
    worker = make_worker(
        TimedWorker, folder, micro_batch=variant.micro_batch, teacher_micro_batch=arguments.teacher_micro_batch,
        max_length=arguments.prompt + arguments.response, settings=list(settings.values()),
    )  # fmt: skip
    started = time.perf_counter()
    few = max(variant.micro_batch, arguments.teacher_micro_batch)
    worker.timed_update(random_rows(few, arguments.prompt, arguments.response))
    warm_up_s = time.perf_counter() - started
    runs = [
        worker.timed_update(random_rows(arguments.rows, arguments.prompt, arguments.response))
        for _ in range(1 + arguments.repeats)
    ][1:]
    rate = product_rate(floor, 1.0)
    lengths = [arguments.prompt + arguments.response] * arguments.rows
    tokens = arguments.rows * arguments.response
    flop = model_flop(lengths, tokens)
    times = {key: statistics.median(run[1][key] for run in runs) for key in runs[0][1]}
    beyond = max(times["teacher_peak"], times["student_peak"]) - state_bytes(worker)
    metrics = runs[-1][0]
    return {
        "name": name, "rows": arguments.rows, "micro_batch": variant.micro_batch, "settings": list(variant.settings), "tokens": tokens,
        **{key: times[key] for key in ("teacher_s", "student_s", "update_s")},
        "tokens_per_s": tokens / times["update_s"], "ms_per_1k_tokens": times["update_s"] / tokens * 1e6,
        "mfu_teacher": flop["teacher"] / times["teacher_s"] / rate, "mfu_student": flop["student"] / times["student_s"] / rate,
        "product_tflops": rate / 1e12, "peak_beyond_gib": beyond / 2**30, "state_gib": state_bytes(worker) / 2**30,
        "pcie_gib": metrics["perf/teacher_cache_copied_mb"][0] / 2**10, "warm_up_s": warm_up_s,
    }  # fmt: skip


def show(row: dict[str, Any]) -> None:
    shown = {
        "tokens_per_s": "{:.0f} tok/s", "ms_per_1k_tokens": "{:.2f} ms/1k", "teacher_s": "teacher {:.3f} s", "student_s": "student {:.3f} s",
        "mfu_teacher": "MFU {:.1%}", "mfu_student": "MFU {:.1%}", "peak_beyond_gib": "{:.2f} GiB", "pcie_gib": "PCIe {:.2f} GiB",
        "product_tflops": "{:.0f} TFLOP/s", "warm_up_s": "warm-up {:.0f} s",
    }  # fmt: skip
    print(
        f"{row['name']:30s} " + "  ".join(text.format(row[key]) for key, text in shown.items() if key in row),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default=";".join(VARIANTS), help="separated by ;")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--response", type=int, default=2048)
    parser.add_argument("--teacher-micro-batch", type=int, default=16, help="rows")
    parser.add_argument("--repeats", type=int, default=2, help="timed updates of each, after one untimed")
    parser.add_argument("--json", type=Path, default=Path("build/bench-gpu/update.json"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench-gpu: no CUDA device here")
    rows: list[dict[str, Any]] = []
    facts = machine("torch", "triton", "transformers", "verl")
    print(facts, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        floor = Floor()
        for name in arguments.variants.split(";"):
            rows.append(measure(name, Path(folder), arguments, floor))
            show(rows[-1])
            torch.cuda.empty_cache()
            write_record(arguments.json, {"environment": facts, "rows": rows})


if __name__ == "__main__":
    main()
