"""`python -m tests.benchmarks.saves`: how long training stands still for a checkpoint, within the step and beside the next ones.

The real save of one rank (`ShardUploads`, from `copy_next_save` to the seal) of a state of `--gib` GiB in FSDP's three files, in
a run directory on this machine's disk, without Ray; in turn saved within the step, saved beside it, and copied by a plain
memcpy to memory that was written before. A benchmark, not a timed test: it shares disk, memory and cores with what else runs.
`--json FILE` writes the numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from opd.compat import host_copies
from opd.config.running import Checkpoint
from opd.runs.run import Run
from opd.worker import checkpointing
from opd.worker.checkpointing import Sealing, ShardUploads

# Of a state: weights, and AdamW's two moments.
PARTS = {"model": 1 / 3, "optim": 2 / 3}
TENSOR_BYTES = 64 * 2**20
# What memcpy writes to, again and again: more than any cache holds.
TARGET_BYTES = 2**30


class Engine:
    """verl's part of a save: one `torch.save` a file."""

    def __init__(self, num_bytes: int):
        self.state = {
            part: [
                torch.full((TENSOR_BYTES // 4,), 0.5) for _ in range(max(1, round(share * num_bytes / TENSOR_BYTES)))
            ]
            for part, share in PARTS.items()
        } | {"extra_state": [torch.get_rng_state()]}

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensors in self.state.values() for tensor in tensors)

    def save_checkpoint(self, local_path: str, hdfs_path: None, global_step: int, max_ckpt_to_keep: None) -> None:
        folder = Path(local_path)
        folder.mkdir(parents=True, exist_ok=True)
        for part, tensors in self.state.items():
            torch.save({"step": global_step, "tensors": tensors}, folder / f"{part}_world_size_1_rank_0.pt")


class Rank(ShardUploads, Engine):
    rank = 0


class Workers:
    """The worker group of one rank in this process."""

    world_size = 1

    def __init__(self, rank: Rank):
        self._rank = rank

    def __getattr__(self, name: str) -> Callable[..., list[Any]]:
        return lambda **arguments: [getattr(self._rank, name)(**arguments)]


class Training:
    """A thread that does small operations, as one that launches kernels: its longest pause, seconds."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._has_ended = False
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Training:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._has_ended = True
        self._thread.join()

    def _work(self) -> None:
        last_s, value = time.perf_counter(), torch.ones(16)
        while not self._has_ended:
            value = value * 1.0
            time.sleep(0.001)
            now_s = time.perf_counter()
            self.longest_s, last_s = max(self.longest_s, now_s - last_s), now_s


def save(run: Run, rank: Rank, step: int, *, beside: bool) -> dict[str, float]:
    """Seconds that the step stands still (`stall`) and, of a save beside it, until the seal (`all`) and of the training's `longest pause`."""
    workers, sealing, keep = Workers(rank), Sealing(), Checkpoint(keep_last=1)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    assert run.checkpoints.begin(step)
    if beside:
        rank.copy_next_save()
    staged = run.checkpoints.staged(step)
    rank.save_checkpoint(str(staged / "actor"), None, step, None)
    torch.save({"step": step}, staged / "data.pt")
    sealing.begin(step, lambda: checkpointing.seal(run, workers, step, keep))  # type: ignore[arg-type]
    stall_s, stall_cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    with Training() as training:
        sealing.wait()
    all_s = time.perf_counter() - start_s
    assert run.checkpoints.complete_steps()[-1] == step
    if not beside:
        return {"stall": all_s}
    return {"stall": stall_s, "stall's CPU": stall_cpu_s, "all": all_s, "longest pause": training.longest_s}


def memcpy(engine: Engine, target: list[torch.Tensor]) -> dict[str, float]:
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    for source, copy in zip((each for part in PARTS for each in engine.state[part]), itertools.cycle(target)):
        copy.copy_(source)
    return {"memcpy": time.perf_counter() - start_s, "memcpy's CPU": time.process_time() - start_cpu_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=None, help="on the disk that is measured")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rank = Rank(int(options.gib * 2**30))
    free = host_copies.free_bytes()
    print(
        f"{rank.num_bytes / 2**30:.2f} GiB of state, {free / 2**30:.1f} GiB of host memory to take, load {os.getloadavg()[0]:.0f}"
    )
    target = [torch.zeros(TENSOR_BYTES // 4) for _ in range(TARGET_BYTES // TENSOR_BYTES)]
    rows: list[dict[str, float]] = []
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        Run.open(run_id="r", local_root=folder, spec={"a": 1}, spec_hash="h", tee=False) as run,
    ):
        for number in range(options.rounds):
            within = save(run, rank, 2 * number + 1, beside=False)
            beside = save(run, rank, 2 * number + 2, beside=True)
            rows.append({"within": within["stall"], **beside, **memcpy(rank, target), "load": os.getloadavg()[0]})
            print("  ".join(f"{name} {value:.2f}" for name, value in rows[-1].items()), flush=True)
    if options.json:
        about = {"gib": rank.num_bytes / 2**30, "cpus": os.cpu_count(), "python": platform.python_version()}
        options.json.write_text(json.dumps(about | {"rounds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
