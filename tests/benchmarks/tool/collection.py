"""A large store of runs as the trainer leaves them: files for an S3 server to serve, and what a reader must find in them.

Fifty experiments (learning rates) under four seeds each: 200 runs of two attempts, the second of which resumed 20 steps
before the first one's end, with logs and sealed checkpoints. One run's first file holds a corrupt line and ends in half a one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd.config import load_spec
from opd.config.canonical import dump_spec
from opd.runs.attempts import Owner
from opd.runs.headline import is_headline
from opd.runs.manifest import COMPLETE_FILE, MANIFEST_FILE, FileEntry, Manifest, step_folder
from opd.runs.process import this_process
from opd.runs.summary import FINISHED, SUMMARY_FILE, Summary

NUM_SEEDS = 4
# Histories are repeated: to invent them all would take longer than what is measured.
NUM_DISTINCT = 12
NUM_RECOMPUTED = 20
TEST_FREQ = 20
SAVE_FREQ = 500
DAMAGED_RUN = 7
CORRUPT_LINE, HALF_LINE = b'{"step": 3, "opd/loss": \n', b'{"step": 1, "opd/lo'
ACCURACY_SET = "val-core/math/acc/mean@1"

# What a training step of kind `opd` logs; these keep one value through a run, the others move.
CONSTANT = {
    "rollout/failed": 0.0, "reward/failed": 0.0, "data/num_overlong_dropped": 0.0, "rollout/trajectories": 128.0,
    "opd/batch_size": 128.0, "opd/num_updates": 1.0, "opd/nonfinite_tokens": 0.0, "opd/skipped_step": 0.0,
    "opd/lr": 4e-05, "perf/teacher_cache_mb": 0.25, "opd/valid_rows": 128.0, "training/epoch": 0,
    "opd/tool_mask/tool_tokens": 0.0, "response_length/clip_ratio": 0.0,
}  # fmt: skip
MOVING = (
    "opd/loss", "opd/divergence", "opd/entropy", "opd/teacher_entropy", "opd/num_tokens", "opd/grad_norm",
    "opd/divergence_max", "opd/reward_weight_max", "opd/reward_weight_min", "opd/n_correct", "opd/accuracy", "opd/score_mean",
    "global_seqlen/min", "global_seqlen/max", "global_seqlen/mean", "response_length/mean", "response_length/max",
    "training/rollout_probs_diff_mean", "training/rollout_probs_diff_max", "training/rollout_actor_probs_pearson_corr",
    "perf/max_memory_allocated_gb", "perf/total_num_tokens", "perf/throughput", "timing/generate_s", "timing/teacher_s",
    "timing/student_s", "timing/train_s", "timing/step_s", "timing_s/gen", "timing_s/update_actor", "timing_s/step",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Collection:
    """What `fill` wrote: run ids in order, bytes of metrics, lines of one run's log."""

    names: list[str]
    num_metrics: int
    num_metrics_bytes: int
    num_log_lines: int


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The streamed files of one attempt."""

    metrics: bytes
    log: bytes


def fill(bucket: Path, *, num_runs: int, num_steps: int, manifest: Path) -> Collection:
    """Writes the runs below `bucket`; `manifest` is the experiment file that their specs come from."""
    spec = dump_spec(load_spec(manifest, env={}).spec)
    histories = [history(seed, num_steps) for seed in range(NUM_DISTINCT)]
    names, num_bytes = [], 0
    first: dict[int, Path] = {}
    for number in range(num_runs):
        experiment, seed = divmod(number, NUM_SEEDS)
        name = f"math-lr{experiment:02d}-s{seed}"
        attempts = histories[number % NUM_DISTINCT]
        if number == DAMAGED_RUN:
            attempts = (Attempt(metrics=damaged(attempts[0].metrics), log=attempts[0].log), attempts[1])
        same = None if number == DAMAGED_RUN else first.setdefault(number % NUM_DISTINCT, bucket / name)
        _write_run(bucket / name, _own_spec(spec, name, experiment, seed, num_steps), attempts, num_steps, same=same)
        names.append(name)
        num_bytes += sum(len(attempt.metrics) for attempt in attempts)
    num_lines = sum(attempt.log.count(b"\n") for attempt in histories[0])
    return Collection(
        names=names,
        num_metrics=len(CONSTANT) + len(MOVING),
        num_metrics_bytes=num_bytes,
        num_log_lines=num_lines,
    )


def loss(attempt: int, step: int) -> float:
    """The loss that an attempt (from 1) logged at a step, the same in every run: tells which attempt's value was kept."""
    return attempt + math.exp(-step / 500)


def history(seed: int, num_steps: int) -> tuple[Attempt, Attempt]:
    """Two attempts: the second one resumed NUM_RECOMPUTED steps before the first one's end."""
    rng = random.Random(seed)

    def line(attempt: int, step: int) -> str:
        row: dict[str, float] = {"step": step, "time": 1.7e9 + step, **CONSTANT}
        row |= {name: math.exp(-step / 500) + 0.1 * rng.random() for name in MOVING}
        row["opd/loss"] = loss(attempt, step)
        row["opd/accuracy"] = 1 - row["opd/accuracy"] / 2
        if step % TEST_FREQ == 0:
            row[ACCURACY_SET] = 0.6 - 0.3 * math.exp(-step / 500) + 0.05 * rng.random()
        return json.dumps(row) + "\n"

    middle = num_steps // 2
    spans = (range(1, middle + NUM_RECOMPUTED + 1), range(middle + 1, num_steps + 1))
    first, second = (
        Attempt(
            metrics="".join(line(number, step) for step in span).encode(),
            log=b"".join(
                b"step %d/%d  loss %.4f  acc 0.500  entropy 0.085  grad 7.107  tok/s 1477  s 1.56  eta 0:00\n"
                % (step, num_steps, loss(number, step))
                for step in span
            ),
        )
        for number, span in enumerate(spans, start=1)
    )
    return first, second


def merge_problem(parquet: Path, *, num_runs: int, num_steps: int) -> str:
    """What is wrong with the collected metrics, empty if nothing is.

    Every run has every step once, and of the steps that both attempts computed the later attempt's value.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(parquet, columns=["run_id", "step", "opd/loss"])
    if table.num_rows != num_runs * num_steps:
        return f"{table.num_rows} rows instead of {num_runs * num_steps}"
    middle = num_steps // 2
    expected = {step: loss(1 if step <= middle else 2, step) for step in range(1, num_steps + 1)}
    for run_id in pc.unique(table["run_id"]).to_pylist():
        run = table.filter(pc.equal(table["run_id"], run_id))
        if dict(zip(run["step"].to_pylist(), run["opd/loss"].to_pylist(), strict=True)) != expected:
            return f"{run_id}: not the later attempt's values"
    return ""


def damaged(metrics: bytes) -> bytes:
    """The file with a corrupt line after its first one and half a line at its end: nothing of it is lost."""
    first_end = metrics.index(b"\n") + 1
    return metrics[:first_end] + CORRUPT_LINE + metrics[first_end:] + HALF_LINE


def _own_spec(spec: dict[str, Any], name: str, experiment: int, seed: int, num_steps: int) -> dict[str, Any]:
    own = copy.deepcopy(spec)
    own |= {"name": name, "seed": seed}
    own["actor"]["learning_rate"] = round(1e-6 * (1 + experiment), 9)
    own["trainer"] |= {"total_steps": num_steps, "test_freq": TEST_FREQ, "save_freq": SAVE_FREQ}
    return own


def _write_run(
    run: Path, spec: dict[str, Any], attempts: tuple[Attempt, Attempt], num_steps: int, *, same: Path | None
) -> None:
    """Writes one run; its histories are links to those of `same`, where that is another run with equal ones."""
    for number, attempt in enumerate(attempts, start=1):
        folder = run / "attempts" / f"{number:04d}"
        folder.mkdir(parents=True)
        for file, data in (("metrics.jsonl", attempt.metrics), ("driver.log", attempt.log)):
            if same in (None, run):
                (folder / file).write_bytes(data)
            else:
                (folder / file).hardlink_to(same / folder.relative_to(run) / file)
        owner = Owner(
            attempt=number, token="", process=this_process(), started_at_s=time.time(), lease_ttl_s=60.0, spec_hash=""
        )
        _write_json(folder / "owner.json", owner.to_json())
        _write_json(folder / "ended.json", {"outcome": "stopped"})
    for step in range(SAVE_FREQ, num_steps + 1, SAVE_FREQ):
        _write_checkpoint(run / step_folder(step), step)
    spec_hash = hashlib.sha256(json.dumps(spec).encode()).hexdigest()
    _write_json(
        run / "run.json", {"layout_version": 1, "run_id": spec["name"], "spec_hash": spec_hash, "identity": spec}
    )
    _write_json(run / "spec.json", spec)
    _write_json(run / "result.json", {"steps": num_steps})
    _write_json(run / SUMMARY_FILE, _summary(spec, attempts[-1], num_steps).to_json())


def _summary(spec: dict[str, Any], last: Attempt, num_steps: int) -> Summary:
    """As a run leaves it: the last value of each metric of the headline."""
    rows = [json.loads(line) for line in last.metrics.splitlines()[-TEST_FREQ - 1 :]]
    latest = {name: value for row in rows for name, value in row.items() if is_headline(name)}
    return Summary(
        attempt=2, kind=spec["kind"], outcome=FINISHED, detail="", time_s=time.time(), last_step=num_steps,
        total_steps=num_steps, latest=latest, checkpoint=num_steps // SAVE_FREQ * SAVE_FREQ or None,
    )  # fmt: skip


def _write_checkpoint(folder: Path, step: int) -> None:
    names = [f"{part}_world_size_1_rank_0.pt" for part in ("model", "optim", "extra_state")] + ["data.pt"]
    entries = []
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
        entries.append(FileEntry(path=name, size=len(name), sha256=hashlib.sha256(name.encode()).hexdigest(), rank=0))
    manifest = Manifest(step=step, attempt=1, spec_hash="", files=tuple(entries))
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    (folder / COMPLETE_FILE).write_bytes(manifest.seal())


def _write_json(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1))
