"""`make bench-host`: all GPUs of one host against one of them, Qwen3-8B's shape into 1.7B's.

Speed: `bench_step` by strict and by carry with the same rows for each GPU, on one GPU and on all. Numbers: `gpu_smoke` with the
learning rate that a student of this size gets, data-parallel and sequence-parallel in pairs and over all GPUs, beside one
GPU; two teachers; a rank's process killed. Runs that need one GPU are made side by side, one on each; so are those on all GPUs whose times
say nothing, as many as the memory holds. The JSON file is written after every run, and a later call makes those that it lacks or that were cut short.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.facts import ROOT, machine, write_record
from tests.gpu.processes import END_S as LAUNCHERS_S
from tests.gpu.processes import end
from tests.gpu_smoke.smoke import BROKEN

from opd.inputs.fetch import CACHE_VARIABLE

PHASE = "128 rows, log-normal"
IN_FLIGHT = 256
SHARE_GIB = 18
"""GiB of a GPU that the memory plan of a run beside others may count on."""
ROOM_GIB = SHARE_GIB + 6
"""With the rollout server and what CUDA takes in their processes."""
SHARED = (
    f"opd.gpu_memory_gib={SHARE_GIB}", "rollout.gpu_memory_utilization=0.1",
    "rollout.engine_kwargs.kv_cache_memory_bytes=3000000000", "rollout.free_cache_engine=false",
)  # fmt: skip
"""vLLM else measures what is free while others take and give back, and fails: as it starts, and as it goes to sleep."""
ONE, KILLED = "one GPU", "a rank killed"
SPEED = "trained_tokens_per_s"
PACKAGES = ("torch", "triton", "transformers", "verl", "vllm", "ray")
POLL_S = 1.0
END_S = LAUNCHERS_S + 15.0
"""A run's own, for the launcher that it has started."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of one of the two programs, on `num_gpus` GPUs."""

    name: str
    num_gpus: int
    program: str
    """`tests.benchmarks.gpu.bench_step` or `tests.gpu_smoke.smoke`."""
    arguments: tuple[str, ...]

    def words(self, folder: Path, models: Path, limit_s: float) -> list[str]:
        out = [sys.executable, "-m", self.program, "--folder", str(folder), *self.arguments]
        if self.program == STEP:
            return [*out, "--limit-s", str(limit_s), "--json", str(folder / RESULTS)]
        given = ["--models", str(models)] if self.reads_models else []
        return [*out, "--timeout-s", str(limit_s), *given]

    def folder(self, root: Path) -> Path:
        return root / self.name.replace(",", "").replace(" ", "_")

    @property
    def reads_models(self) -> bool:
        """Whether it distils the 8B shape into the 1.7B one; else it makes small models of its own."""
        return self.program == STEP or "opd" in self.arguments


STEP, SMOKE, RESULTS = "tests.benchmarks.gpu.bench_step", "tests.gpu_smoke.smoke", "results.json"


def _step(name: str, num_gpus: int, *more: str) -> Run:
    return Run(
        name=name, num_gpus=num_gpus, program=STEP, arguments=("--gpus", str(num_gpus), "--phases", PHASE, *more)
    )


def _smoke(name: str, num_gpus: int, spec: str, *sets: str) -> Run:
    words = [word for item in (f"trainer.gpus_per_node={num_gpus}", *sets) for word in ("--set", item)]
    return Run(name=name, num_gpus=num_gpus, program=SMOKE, arguments=("--only", spec, *words))


def waves(num_gpus: int) -> list[list[Run]]:
    """What is made one after the other; the runs of a wave may be made at the same time."""
    strict, carry = ("--steps", "5"), ("--steps", "8", "--schedule", "carry", "--in-flight", str(IN_FLIGHT))
    rate = ("actor.learning_rate=1e-5",)
    groups = {
        "data-parallel": (),
        **{
            f"sequence-parallel {size}": (f"actor.ulysses_sequence_parallel_size={size}",)
            for size in sorted({2, num_gpus})
        },
    }
    return [
        [
            _step(f"strict, {ONE}", 1, *strict),
            _step(f"carry, {ONE}", 1, *carry),
            _smoke(f"divergence, {ONE}", 1, "opd", *rate, "rollout.gpu_memory_utilization=0.3"),
            _smoke(f"two teachers, {ONE}", 1, "teachers"),
        ],
        [_step(f"strict, {num_gpus} GPUs", num_gpus, *strict)],
        [_step(f"carry, {num_gpus} GPUs", num_gpus, *carry)],
        [
            *(_smoke(f"divergence, {name}", num_gpus, "opd", *rate, *SHARED, *sets) for name, sets in groups.items()),
            _smoke(f"two teachers, {num_gpus} GPUs", num_gpus, "teachers", *SHARED),
            _smoke(KILLED, num_gpus, "lost-rank", *SHARED),
        ],
    ]


def wanting(wave: Sequence[Run], known: Mapping[str, Any], only: Sequence[str]) -> list[Run]:
    """The runs of a wave that are named and have not ended as they should yet."""
    ended = {name for name, run in known.items() if run["exit"] == 0}
    return [run for run in wave if run.name not in ended and any(text in run.name for text in only)]


def play(wave: Sequence[Run], folder: Path, limit_s: float, at_once: int) -> Iterator[tuple[Run, int | None]]:
    """Each run with its exit code as it ends; None: it was ended after `limit_s`."""
    waiting, running = list(wave), dict[Run, tuple[subprocess.Popen[bytes], float, int]]()
    free = list(range(at_once))
    try:
        while waiting or running:
            while waiting and free:
                run, place = waiting.pop(0), free.pop(0)
                running[run] = _start(run, folder, limit_s, place), time.monotonic(), place
            time.sleep(POLL_S)
            for run, (process, started, place) in list(running.items()):
                is_late = time.monotonic() - started > limit_s + END_S
                if process.poll() is None and not is_late:
                    continue
                code = process.poll()
                end(process, END_S)
                del running[run]
                free.append(place)
                yield run, code
    finally:
        for process, *_ in running.values():
            end(process, END_S)


def _start(run: Run, folder: Path, limit_s: float, place: int) -> subprocess.Popen[bytes]:
    own = run.folder(folder)
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    models = folder / "models"
    if run.program == STEP:
        for role in ("student", "teacher"):
            (own / role).symlink_to(models / role)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(max(place + 1, run.num_gpus))))
    gpus = visible.split(",")
    gpus = [gpus[place]] if run.num_gpus == 1 else gpus[: run.num_gpus]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpus), CACHE_VARIABLE: str(folder / "cache")}
    print(f"{run.name}: begun; its log is {own}/log", flush=True)
    with (own / "log").open("w") as log:
        return subprocess.Popen(
            run.words(own, models, limit_s), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )  # fmt: skip


def found(run: Run, folder: Path) -> dict[str, Any] | None:
    """Return what the run has written; None means that it made no step."""
    path = run.folder(folder) / RESULTS
    if not path.exists():
        return None
    [told] = json.loads(path.read_text())["runs"].values()
    return told if told["steps"] else None


def report(runs: Mapping[str, Any], num_gpus: int) -> Iterator[str]:
    """A line for each run that has what it is compared with."""
    for schedule in ("strict", "carry"):
        alone, all_gpus = (runs.get(f"{schedule}, {name}") for name in (ONE, f"{num_gpus} GPUs"))
        for name, of in ((ONE, alone), (f"{num_gpus} GPUs", all_gpus)):
            if of and SPEED in of:
                speed = of[SPEED] / (1 if name == ONE else num_gpus)
                has_both = alone and SPEED in alone and name != ONE
                apart = f", {speed / alone[SPEED]:.2f} of one GPU's" if has_both else ""
                yield f"{schedule}, {name}: {speed:,.0f} trained tokens a second and GPU{apart}; a step {of['step_s']:.1f} s"
    for kind in ("divergence", "two teachers"):
        alone = runs.get(f"{kind}, {ONE}")
        for name, of in runs.items():
            if alone and name.startswith(f"{kind}, ") and of is not alone:
                apart = [abs(a - b) for a, b in zip(alone["divergence"], of["divergence"], strict=False)]
                yield f"{name}: {of['steps']} steps, apart at most {max(apart):.1e} (first {apart[0]:.1e}), Pearson at least {of['pearson_min']:.5f}"
    for name, of in runs.items():
        for promise, observed in of.get("promises", {}).items():
            if observed.startswith(BROKEN) or name == KILLED:
                yield f"{name}: {promise}: {observed}"


def arguments_of(about: str | None, *, name: str, least_gpus: int, limit_s: float) -> argparse.Namespace:
    """Of a program that makes runs side by side: `folder`, `json`, `gpus`, `only` and `limit_s`.

    Raises:
        SystemExit: there are fewer than `least_gpus` GPUs.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, help="of this host; default: all")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="runs whose names hold one of these")
    parser.add_argument("--limit-s", type=float, default=limit_s, help="after which a run is ended")
    parser.add_argument("--folder", type=Path, default=Path("build", name))
    parser.add_argument("--json", type=Path, default=Path("build", name, "results.json"))
    arguments = parser.parse_args()
    import torch

    arguments.gpus = arguments.gpus or torch.cuda.device_count()
    if arguments.gpus < least_gpus:
        raise SystemExit(f"{name}: {arguments.gpus} CUDA devices here; it needs {least_gpus} at least")
    return arguments


def prepared(arguments: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """The folder with the models in it, and what earlier calls have found; SIGTERM ends the runs that are begun from now on."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = {"environment": machine(*PACKAGES) | {"gpus": arguments.gpus}, "runs": {}}
    if arguments.json.exists():
        known["runs"] = json.loads(arguments.json.read_text())["runs"]
    if not (folder / "models/teacher/tokenizer.json").exists():
        words = [sys.executable, "-m", STEP, "--models-only", "--folder", str(folder / "models")]
        subprocess.run(words, cwd=ROOT, check=True)  # its GPU memory ends with it
    return folder, known


def main() -> None:
    arguments = arguments_of(__doc__, name="bench-host", least_gpus=2, limit_s=450.0)
    import torch

    num_gpus = arguments.gpus
    memory_gib = torch.cuda.get_device_properties(0).total_memory / 2**30
    folder, known = prepared(arguments)
    for wave in waves(num_gpus):
        wanted = wanting(wave, known["runs"], arguments.only)
        at_once = num_gpus if wave[0].num_gpus == 1 else max(1, int(memory_gib // ROOM_GIB)) if len(wave) > 1 else 1
        for run, code in play(wanted, folder, arguments.limit_s, at_once):
            seen = found(run, folder)
            print(f"{run.name}: exit {code}, {seen['steps'] if seen else 0} steps", flush=True)
            if seen:
                known["runs"][run.name] = seen | {"exit": code}
                write_record(arguments.json, known)
    print(*report(known["runs"], num_gpus), sep="\n")


if __name__ == "__main__":
    main()
