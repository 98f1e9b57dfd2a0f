"""Four large teachers that take turns on one GPU: seconds of a swap, and what four cost beyond the sum of their passes.

`python -m tests.benchmarks.gpu.bench_teachers --json OUT.json`: the real worker (FSDP2 on one rank, no Ray) with a random student of Qwen3-1.7B's
shape on the device and four teachers of Qwen3-8B's on the host, each of which has a quarter of the rows. Parts, each written as it ends:

- swap: a teacher's weights from the host to the device, and off it again; each by itself, nothing else at work. Gate: `MAX_SWAP_S`.
- passes: of each teacher alone, on the device already, over its own rows; and of all four in one teacher phase as a step has it, with the
  swaps and the heads that it leaves for the student. Both begin hot (`measure.round_robin`). Gate: `MAX_BEYOND` over the sum, and the
  hidden states of both are equal bit by bit.
- update: one whole step of the worker.

`--tiny` runs the same program on a CPU with small models and the same vocabulary, to try it out: its times say nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.gpu.measure import Floor
from tests.benchmarks.gpu.worker_alone import QWEN3_1_7B, QWEN3_8B, Shape, make_worker, prepare, random_rows
from tests.gpu.facts import machine, write_record

NUM_TEACHERS = 4
MAX_SWAP_S = 1.0
"""To the device."""
MAX_BEYOND = 0.05
NAMES = [f"t{number}" for number in range(NUM_TEACHERS)]
SHAPES = {"student": QWEN3_1_7B, **dict.fromkeys(NAMES, QWEN3_8B)}
TINY = {
    "student": Shape(num_layers=2, width=32, mlp_width=64, num_heads=4, num_kv_heads=2, head_dim=16, tied=True),
    **dict.fromkeys(NAMES, Shape(num_layers=3, width=64, mlp_width=128, num_heads=4, num_kv_heads=2, head_dim=16)),
}
LINK_BYTES = 2**30
HOT_S = 1.0
"""Seconds of large products before each timed pass."""


class Device:
    """Where the worker computes: waits for it, heats it."""

    def __init__(self, *, tiny: bool) -> None:
        self.name = "cpu" if tiny else "cuda"
        self._floor = None if tiny else Floor()

    def wait(self) -> None:
        if self.name == "cuda":
            torch.cuda.synchronize()

    def heat(self) -> None:
        if self._floor is not None:
            self._floor.run(HOT_S * 700e12)()
            self.wait()

    def peak_gib(self) -> float:
        """Allocated at the most so far."""
        return torch.cuda.max_memory_allocated() / 2**30 if self.name == "cuda" else 0.0

    def seconds(self, call: Callable[[], object]) -> float:
        self.wait()
        started = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - started


def _facts(*, tiny: bool) -> dict[str, Any]:
    return {"device": "cpu, tiny shapes: no measurement"} if tiny else machine("torch", "transformers", "verl")


def _teacher_sets(folder: Path) -> list[str]:
    keys = [f"teachers.{name}.{key}" for name in NAMES for key in (f"path={folder / name}", "offload=true")]
    return [*keys, f"route.to={{{', '.join(f'{name}: {name}' for name in NAMES)}}}"]


def link(device: Device) -> dict[str, float]:
    """GB/s of one large copy of pinned memory each way: what a swap can reach at most."""
    host = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=device.name == "cuda")
    there = torch.empty_like(host, device=device.name)
    best = {}
    for name, copy in (("to_device", lambda: there.copy_(host)), ("to_host", lambda: host.copy_(there))):
        best[name] = LINK_BYTES / min(device.seconds(copy) for _ in range(4)) / 1e9
    return best


def swap(worker: Any, device: Device, repeats: int) -> dict[str, Any]:
    """Each teacher to the device and off it, `repeats` times."""

    load, release = [], []
    for _ in range(repeats):
        for engine in worker.teacher_engines:
            with engine.on_device():
                load.append(device.seconds(engine.parked.load))
                release.append(device.seconds(engine.parked.release))
    parts = worker.teacher_engines[0].local_weights().values()
    num_bytes = sum(part.nbytes for part in parts)
    return {
        "bytes": num_bytes, "load_s": statistics.median(load),
        "release_s": statistics.median(release),
        "load_gb_a_second": num_bytes / statistics.median(load) / 1e9, "is_pinned": all(part.is_pinned() for part in parts),
        "most_s": MAX_SWAP_S, "is_kept": statistics.median(load) <= MAX_SWAP_S,
    }  # fmt: skip


class Passes:
    """The teacher phase of the worker over the same rows, again and again."""

    def __init__(self, worker: Any, device: Device, rows: int, prompt: int, response: int) -> None:
        from opd.batch import build_opd_batch

        self._worker, self._device = worker, device
        self.data = random_rows(rows, prompt, response)
        self.data["teacher"] = torch.arange(rows) % NUM_TEACHERS
        self.data["opd_row"] = torch.arange(rows)
        self._rows = build_opd_batch(
            self.data, max_length=prompt + response, sample_weights=self.data["sample_weights"]
        ).rows
        self.is_equal = True
        """What the teachers left in `together` is what they left in `alone`, in every row of every round."""
        self._left: dict[int, torch.Tensor] = {}

    def _numbers(self, teacher: int) -> list[int]:
        return (self.data["teacher"] == teacher).nonzero()[:, 0].tolist()

    @contextlib.contextmanager
    def _states(self) -> Iterator[Any]:
        from opd.worker.teacher_phase import TeacherStates

        cache = self._worker._hidden_cache()
        of_rows = self.data["teacher"].tolist()
        try:
            yield TeacherStates(cache=cache, readers=self._worker.spec.readers, of_rows=of_rows)
        finally:
            cache.clear()

    def alone(self, number: int) -> float:
        """Seconds of one teacher's pass over its rows, its weights there already."""
        from verl.utils import tensordict_utils as tu

        from opd.worker.teacher_phase import TeacherPhase

        worker = self._worker
        own = tu.index_select_tensor_dict(self.data, torch.tensor(self._numbers(number)))
        engine = worker.teacher_engines[number]
        with engine.on_device(), self._states() as states:
            engine.parked.load()
            phase = TeacherPhase(
                teachers=worker.teachers, reading=worker._reading, states=states, valid_vocab=worker.facts.valid_vocab,
                entries=slice(None), load_ahead=False,
            )  # fmt: skip
            self._device.heat()
            seconds = self._device.seconds(lambda: phase._pass(own, self._rows, number, worker.teachers[number]))
            self._left[number] = states.cache.fetch(self._numbers(number), number).ready().cpu()
        return seconds

    def together(self) -> float:
        """Seconds of the whole teacher phase of a step."""
        with self._states() as states:
            self._device.heat()
            seconds = self._device.seconds(lambda: self._worker._teacher_phase(self.data, self._rows, None, states))
            for number, left in self._left.items():
                found = states.cache.fetch(self._numbers(number), number).ready().cpu()
                self.is_equal = self.is_equal and torch.equal(found, left)
        return seconds

    def update(self) -> dict[str, float]:
        """Seconds of both phases of one whole step, and the most memory that was ever allocated."""
        from verl.utils import tensordict_utils as tu

        metrics = tu.get(self._worker.update_opd(self.data.exclude("opd_row")), "metrics")
        found = {name: float(metrics[f"timing/{name}"][0]) for name in ("teacher_s", "student_s")}
        return found | {"peak_gib": self._device.peak_gib()}


def _result(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    beyond = [one["together_s"] / sum(one["alone_s"]) - 1 for one in rounds]
    return {
        "rounds": len(rounds),
        "sum_s": statistics.median(sum(one["alone_s"]) for one in rounds),
        "together_s": statistics.median(one["together_s"] for one in rounds),
        "beyond": statistics.median(beyond),
        "most": MAX_BEYOND, "is_kept": statistics.median(beyond) <= MAX_BEYOND,
    }  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help=f"a multiple of {NUM_TEACHERS}")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--response", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each part, after one that is not counted")
    parser.add_argument("--seconds", type=float, default=240, help="no further round begins after so many")
    parser.add_argument("--json", type=Path, default=Path("build/bench-gpu/teachers.json"))
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    begun = time.monotonic()
    if args.tiny:
        os.environ |= {"VERL_USE_EXTERNAL_MODULES": "opd.compat.cpu", "VERL_ENGINE_DEVICE": "cuda"}
    elif not torch.cuda.is_available():
        raise SystemExit("bench_teachers: no CUDA device here; --tiny tries the program out on a CPU")
    from opd.worker.opd_worker import OPDWorker

    found: dict[str, Any] = {"environment": _facts(tiny=args.tiny), "rows": args.rows, "tokens_a_row": [args.prompt, args.response]}  # fmt: skip

    def part(name: str, value: Any) -> None:
        found[name] = value
        found["elapsed_s"] = time.monotonic() - begun
        write_record(args.json, found)
        print(f"[{found['elapsed_s']:5.1f} s] {name}: {value}", flush=True)

    device = Device(tiny=args.tiny)
    part("link_gb_a_second", link(device))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, TINY if args.tiny else SHAPES)
        started = time.perf_counter()
        worker = make_worker(
            OPDWorker, folder, micro_batch=4, teacher_micro_batch=args.rows // NUM_TEACHERS, max_length=args.prompt + args.response,
            settings=[], teacher_sets=_teacher_sets(folder),
        )  # fmt: skip
        part("start_s", time.perf_counter() - started)
        plan = worker.plan
        part("plan", None if plan is None else str(plan.choice))
        part("swap", swap(worker, device, args.repeats))
        passes = Passes(worker, device, args.rows, args.prompt, args.response)
        started = time.perf_counter()
        passes.together()  # compiles
        part("first_phase_s", time.perf_counter() - started)
        rounds: list[dict[str, Any]] = []
        while len(rounds) < args.repeats and (not rounds or time.monotonic() - begun < args.seconds):
            alone = [passes.alone(number) for number in range(NUM_TEACHERS)]
            rounds.append({"alone_s": alone, "together_s": passes.together()})
            part("passes", _result(rounds) | {"is_equal": passes.is_equal, "peak_gib": device.peak_gib()})
        if time.monotonic() - begun < args.seconds:
            part("update", passes.update())
    for name, of in ("swap", "load_s"), ("passes", "beyond"):
        print(f"{name}: {of} {found[name][of]:.3f}, gate {'kept' if found[name]['is_kept'] else 'missed'}")


if __name__ == "__main__":
    main()
