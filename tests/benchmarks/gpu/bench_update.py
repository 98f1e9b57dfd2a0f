"""The whole update, teacher phase and student phase, through the real worker against the original's design.

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
    NUM_VOCAB,
    QWEN3_1_7B,
    QWEN3_8B,
    ROLE,
    make_worker,
    prepare,
    random_rows,
)
from tests.gpu.facts import machine, write_record
from verl.utils import tensordict_utils as tu
from verl.workers.engine.utils import prepare_micro_batches

from opd.batch import RolloutRows, build_opd_batch
from opd.losses import divergence
from opd.worker.opd_worker import OPDWorker
from opd.worker.reading import trained_positions
from opd.worker.teacher_phase import TeacherStates

STUDENT, TEACHER = QWEN3_1_7B, QWEN3_8B
ORIGINAL_CHUNK = 512  # opd.chunk_size of the original
ORIGINAL_MICRO_BATCH = 4  # its ppo_micro_batch_size_per_gpu


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
ORIGINALS = {"pageable": (False, True), "pinned": (True, True), "pageable, compiled backbones": (False, False)}
"""(pinned, layers as transformers has them): the last shows what our backbones alone would give the original."""
MIN_SPEED, MAX_PEAK, MIN_STUDENT_MFU = 5.0, 0.5, 0.5
"""The gates: times as fast as the pageable original, share of its peak, and MFU of the student's phase."""


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


def measure_ours(name: str, folder: Path, arguments: argparse.Namespace, floor: Floor) -> tuple[dict[str, Any], Any]:
    """One variant: two updates to warm up and compile, then the timed ones. Returns its row and the worker."""
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
        "name": f"ours, {name}", "rows": arguments.rows, "micro_batch": variant.micro_batch, "settings": list(variant.settings), "tokens": tokens,
        **{key: times[key] for key in ("teacher_s", "student_s", "update_s")},
        "tokens_per_s": tokens / times["update_s"], "ms_per_1k_tokens": times["update_s"] / tokens * 1e6,
        "mfu_teacher": flop["teacher"] / times["teacher_s"] / rate, "mfu_student": flop["student"] / times["student_s"] / rate,
        "product_tflops": rate / 1e12, "peak_beyond_gib": beyond / 2**30, "state_gib": state_bytes(worker) / 2**30,
        "pcie_gib": metrics["perf/teacher_cache_copied_mb"][0] / 2**10, "warm_up_s": warm_up_s,
    }, worker  # fmt: skip


class Original:
    """The original's update on the same backbones: whole teacher logits through host memory, a chunked loss under autograd.

    Attention (a flash kernel over packed rows, as the original's), checkpointing (its default), FSDP and optimizer are
    those of our worker; layers run as transformers has them unless said otherwise. Logits of prompt tokens are made, as
    it does; every slice of them has a full-size gradient, as it has.
    """

    def __init__(self, worker: TimedWorker, data: TensorDict, micro_batch: int, *, pinned: bool) -> None:
        self.worker, self.pinned = worker, pinned
        data["opd_row"] = torch.arange(len(data))
        tu.assign_non_tensor(data, use_dynamic_bsz=False, micro_batch_size_per_gpu=micro_batch)
        device = worker.student_engine.device
        self.micro_batches = [part.to(device) for part in prepare_micro_batches(data)[0]]
        tokens = int(self.micro_batches[0]["input_ids"].offsets()[-1])
        shape = (len(self.micro_batches), tokens, NUM_VOCAB)
        # Pinned memory is made once and used every step; pageable memory is what `.cpu()` gives each time.
        self.host = torch.empty(shape, dtype=torch.bfloat16, pin_memory=True) if pinned else None

    def update(self) -> None:
        teacher, student = self.worker.teacher_engine, self.worker.student_engine
        cached = []
        with teacher.eval_mode(), torch.no_grad():
            for i, micro_batch in enumerate(self.micro_batches):
                with teacher.autocast():
                    logits = teacher.module(**teacher.model_inputs(micro_batch), use_cache=False).logits[0]
                if self.host is None:
                    cached.append(logits.cpu())
                else:
                    cached.append(self.host[i].copy_(logits, non_blocking=True))
                del logits
        torch.cuda.synchronize()
        with student.train_mode():
            student.optimizer_zero_grad()
            for micro_batch, host in zip(self.micro_batches, cached, strict=True):
                self._loss(micro_batch, host).backward()
            student.optimizer_step()
        torch.cuda.synchronize()

    def _loss(self, micro_batch: TensorDict, host: torch.Tensor) -> torch.Tensor:
        student = self.worker.student_engine
        inputs = student.model_inputs(micro_batch)
        with student.autocast():
            logits = student.module(**inputs, use_cache=False).logits[0]
        teacher_logits = host.to(logits.device, non_blocking=self.pinned)
        rows = self.worker.all_rows
        _, found = trained_positions(rows, micro_batch, student.row_starts(micro_batch, inputs))
        total = torch.zeros((), device=logits.device)
        student_rows, teacher_rows = logits[found.flat_index], teacher_logits[found.flat_index]
        for start in range(0, len(student_rows), ORIGINAL_CHUNK):
            chunk = slice(start, start + ORIGINAL_CHUNK)
            total = total + divergence(student_rows[chunk], teacher_rows[chunk], "reverse_kl").sum()
        return total / len(student_rows)


def measure_original(name: str, worker: TimedWorker, arguments: argparse.Namespace) -> dict[str, Any]:
    """On `arguments.slice` rows: full-length logits of all rows do not fit the host. Times a token are what is compared."""
    pinned, eager = ORIGINALS[name]
    data = random_rows(arguments.slice, arguments.prompt, arguments.response)
    longest = arguments.prompt + arguments.response
    worker.all_rows = build_opd_batch(data, max_length=longest, sample_weights=data["sample_weights"]).rows
    original = Original(worker, data, ORIGINAL_MICRO_BATCH, pinned=pinned)
    with torch.compiler.set_stance("force_eager" if eager else "default"):
        original.update()  # host pages and kernels are there afterwards
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(arguments.repeats):
            started = time.perf_counter()
            original.update()
            times.append(time.perf_counter() - started)
    seconds = statistics.median(times)
    tokens = arguments.slice * arguments.response
    logits_gib = arguments.slice * longest * NUM_VOCAB * 2 / 2**30
    beyond = torch.cuda.max_memory_allocated() - state_bytes(worker)
    return {
        "name": f"the original, {name}", "micro_batch": ORIGINAL_MICRO_BATCH, "rows": arguments.slice, "tokens": tokens,
        "update_s": seconds, "tokens_per_s": tokens / seconds, "ms_per_1k_tokens": seconds / tokens * 1e6,
        "peak_beyond_gib": beyond / 2**30, "pcie_gib": 2 * logits_gib,
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
    parser.add_argument(
        "--originals", default=";".join(ORIGINALS), help="on the first variant's models; empty for none"
    )
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--slice", type=int, default=16, help="rows of the original's update")
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
        for i, name in enumerate(arguments.variants.split(";")):
            row, worker = measure_ours(name, Path(folder), arguments, floor)
            rows.append(row)
            show(row)
            for kind in filter(None, arguments.originals.split(";") if i == 0 else ()):
                rows.append(measure_original(kind, worker, arguments))
                show(rows[-1])
            del worker
            torch.cuda.empty_cache()
            write_record(arguments.json, {"environment": facts, "rows": rows, "comparisons": comparisons(rows)})
    for comparison in comparisons(rows):
        print("{ours} against {other}: {speed:.2f}x as fast, {peak:.2f} of its peak; {verdict}".format(**comparison))


def comparisons(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each of ours against each of the original's: times a token, peaks beyond weights, gradients and moments, gates."""
    found = []
    for ours in (row for row in rows if row["name"].startswith("ours")):
        for other in (row for row in rows if not row["name"].startswith("ours")):
            speed = other["ms_per_1k_tokens"] / ours["ms_per_1k_tokens"]
            peak = ours["peak_beyond_gib"] / other["peak_beyond_gib"]
            kept = {
                f"{MIN_SPEED:g}x": speed >= MIN_SPEED,
                f"{MAX_PEAK:g} of the peak": peak <= MAX_PEAK,
                f"student MFU {MIN_STUDENT_MFU:.0%}": ours["mfu_student"] >= MIN_STUDENT_MFU,
            }
            missed = ", ".join(gate for gate, is_kept in kept.items() if not is_kept)
            verdict = f"misses {missed}" if missed else "all gates kept"
            found.append(
                {"ours": ours["name"], "other": other["name"], "speed": speed, "peak": peak, "verdict": verdict}
            )
    return found


if __name__ == "__main__":
    main()
