"""Program of `make gpu-smoke`: the whole trainer with vLLM on a GPU, and its promises.

`lm` is a pipeline on SmolLM2: fine-tuning, GRPO, pass rates, distillation, an evaluation, and the conversions between
them. `lm-lora` distils it by adapters. Models of random weights are distilled in two sizes, and from two teachers. The toy
tasks are distillation by all weights and by adapters, GRPO, conversations with tools, an evaluation and a pipeline.

Needs a CUDA device and the `gpu` extra. Each run is `opd.launch` as a user starts it; what counts is read from the
files it left. Prints a table, writes `results.json` next to the runs, exits 1 if a promise is broken.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.facts import machine, write_record
from tests.gpu_smoke.promises import (
    ACCURACY,
    PEARSON,
    Promise,
    agent_promises,
    eval_promises,
    promises,
    sft_promises,
    step_parts,
    teacher_promises,
    training_rows,
)
from tests.remainders import write_remainders

from opd.cluster.supervise import DEFAULT_GRACE_S
from opd.experiment import load_spec
from opd.experiment.base import ASKS
from opd.experiment.pipeline import FOLDER as STAGES
from opd.experiment.pipeline import stages_of
from opd.quickstart import language
from opd.runs.metrics import read_metrics
from opd.runs.result import RESULT_FILE
from opd.store.local import LocalStore

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SPECS = {
    "lm": ROOT / "manifests/pipelines/rl-distil-smollm2.yaml",
    "lm-lora": ROOT / "manifests/experiments/quickstart-lm.yaml",
    "opd": HERE / "specs/opd.yaml",
    "teachers": HERE / "specs/teachers.yaml",
    "toy": ROOT / "manifests/experiments/quickstart.yaml",
    "lora": ROOT / "manifests/experiments/quickstart.yaml",
    "grpo": HERE / "specs/grpo.yaml",
    "agent": ROOT / "manifests/experiments/opd-agent-quickstart.yaml",
    "eval": HERE / "specs/eval.yaml",
    "pipeline": HERE / "specs/pipeline.yaml",
}
# The toy task by adapters alone, which vLLM gets merged into the weights at every step.
LORA = ("model.lora.rank=8", "model.lora.alpha=16", "actor.learning_rate=3e-3")
# Their files name folders of the project's root.
ON_SMOLLM2 = ("lm", "lm-lora")
# The pipeline in few steps, each stage at most a minute after its start.
LM = (
    "stages.teacher_sft.trainer={gpus_per_node: 1, total_steps: 40, save_freq: 40, test_freq: 20, val_before_train: true}",
    "stages.teacher_rl.trainer={gpus_per_node: 1, total_steps: 4, save_freq: 4, test_freq: -1, val_before_train: false}",
    "stages.distil.trainer={gpus_per_node: 1, total_steps: 12, save_freq: 12, test_freq: -1, val_before_train: false}",
    "stages.distil.actor.num_warmup_steps=2",
    *(f"stages.{stage}.data.max_train_samples=256" for stage in ("rates", "distil")),
    *(f"stages.{stage}.rollout.enforce_eager=true" for stage in ("teacher_rl", "rates", "distil", "final")),
    "stages.final.rollout.val.num_samples=4",
)
# The quickstarts as they run on a laptop, but on a GPU with vLLM.
QUICKSTARTS = ("lm-lora", "toy", "lora", "agent")
ON_A_GPU = (
    "device=cuda", "output.root=out", "store.url=out/store", "data.num_workers=0",
    "rollout.num_agent_workers=0", "rollout.gpu_memory_utilization=0.3", "rollout.enforce_eager=true",
    "actor.dtype=bf16",
)  # fmt: skip
PACKAGES = ("torch", "triton", "transformers", "verl", "vllm", "ray", "tensordict")


ALLOCATED = "perf/max_memory_allocated_gb"
BROKEN = "BROKEN"


@dataclass(kw_only=True)
class Outcome:
    """One finished run."""

    name: str
    returncode: int
    seconds: float
    first_step_s: float | None
    promises: list[Promise]
    parts: dict[str, float]
    rows: list[dict[str, Any]]

    @property
    def ok(self) -> bool:
        return self.returncode == 0 and all(promise.kept for promise in self.promises)

    def as_dict(self) -> dict[str, Any]:
        steps = training_rows(self.rows)
        correlations = [row[PEARSON] for row in steps if PEARSON in row]
        return {
            "ok": self.ok,
            "exit": self.returncode,
            "seconds": self.seconds,
            "first_step_s": self.first_step_s,
            "steps": len(steps),
            "step_parts_s": self.parts,
            "divergence": [row["opd/divergence"] for row in steps if "opd/divergence" in row],
            "pearson_min": min(correlations, default=None),
            "allocated_gib": max((row[ALLOCATED] for row in steps if ALLOCATED in row), default=None),
            "promises": {one.name: one.observed if one.kept else f"{BROKEN}: {one.observed}" for one in self.promises},
        }


def environment() -> dict[str, str]:
    """The caller's environment; vLLM's default sampler is flashinfer's, which not every installation has."""
    out = dict(os.environ)
    if importlib.util.find_spec("flashinfer") is None:
        out.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    return out | {"HF_HUB_OFFLINE": "1", "HYDRA_FULL_ERROR": "1"}


def wait(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    """Its exit code; 124 where it had to be ended."""
    try:
        return process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        if process.poll() is None:
            process.terminate()  # the launcher ends its run, and what it then has left
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DEFAULT_GRACE_S + 15.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def run(name: str, folder: Path, timeout_s: float, extra: list[str]) -> Outcome:
    """Start one run in `folder`, wait for it, judge it."""
    sets = [*(ON_A_GPU if name in QUICKSTARTS else ()), f"name={name}", *extra]
    sets += LORA if name == "lora" else ()
    if name == "teachers":
        write_remainders(folder / "assets/remainders", seed=1)
    if name in ON_SMOLLM2:
        of_teacher = language.prepare(folder)
        sets += [*(LM if name == "lm" else (*of_teacher, "trainer.gpus_per_node=1"))]
        sets += [f"output.root={folder / 'out'}", f"store.url={folder / 'out/store'}"]
    if SPECS[name] == SPECS["opd"]:
        sets += [f"model.path={folder / 'assets/student'}", f"teacher.path={folder / 'assets/teacher'}"]
    words = [sys.executable, "-m", "opd.launch", str(SPECS[name])]
    for item in sets:
        words += ["--set", item]
    spec = load_spec(str(SPECS[name]), env={}, sets=sets, overrides=[]).spec
    log, run_dir = folder / f"{name}.log", folder / "out" / name
    started, wall = time.monotonic(), time.time()
    with log.open("w") as out:
        process = subprocess.Popen(
            words,
            cwd=ROOT if name in ON_SMOLLM2 else folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )
        returncode = wait(process, timeout_s)
    seconds = time.monotonic() - started
    rows = metrics_of(run_dir)
    if spec.kind == "pipeline":  # its own rows are its stages' ends
        rows = [row for stage in stages_of(spec) for row in metrics_of(run_dir / STAGES / stage.spec.name)]
    steps = training_rows(rows)
    return Outcome(
        name=name,
        returncode=returncode,
        seconds=seconds,
        first_step_s=steps[0]["time"] - wall if steps else None,
        promises=list(_kept(name, spec, rows, run_dir, folder / "out/store" / name, log)),
        parts=step_parts(rows) if len(steps) > 2 and spec.kind != "pipeline" else {},
        rows=rows,
    )


def metrics_of(run_dir: Path) -> list[dict[str, Any]]:
    """The rows that a run has written; none where it never began."""
    return [dict(row) for row in read_metrics([LocalStore(run_dir)])] if run_dir.exists() else []


def _kept(
    name: str, spec: Any, rows: list[dict[str, Any]], run_dir: Path, stored: Path, log: Path
) -> Iterator[Promise]:
    """Return the promises of the run's kind; a single broken promise where it did not come that far."""
    if spec.kind in ASKS:
        result = stored / RESULT_FILE
        yield Promise("finished", result.name if result.exists() else f"no {result}", result.exists())
        if result.exists():
            said = json.loads(result.read_text()), log.read_text(errors="replace")
            yield from eval_promises(run_dir, *said, accuracy=ACCURACY[name])
        return
    if spec.kind == "pipeline":
        for stage in stages_of(spec):
            run = stage.spec.name
            result = stored / STAGES / run / RESULT_FILE
            yield Promise(f"stage {stage.name} finished", result.name if result.exists() else "none", result.exists())
            of_stage = metrics_of(run_dir / STAGES / run)
            if of_stage and stage.spec.kind != "convert":
                found = _kept(name, stage.spec, of_stage, run_dir / STAGES / run, stored / STAGES / run, log)
                yield from (promise._replace(name=f"{stage.name}: {promise.name}") for promise in found)
        return
    if not training_rows(rows):
        yield Promise("at least one step", "none", False)
        return
    if spec.kind == "sft":
        yield from sft_promises(rows, num_steps=spec.trainer.total_steps)
        return
    yield from promises(name, spec.kind, rows, num_steps=spec.trainer.total_steps)
    if name == "teachers":
        yield from teacher_promises(rows, list(spec.routed))
    if spec.kind == "opd-agent":
        yield from agent_promises(rows, run_dir)


def show(outcome: Outcome, log: Path) -> None:
    """The run's part of the table; the end of its log where it failed."""
    first = "-" if outcome.first_step_s is None else f"{outcome.first_step_s:.0f} s"
    print(f"\n{outcome.name}: exit {outcome.returncode}, {outcome.seconds:.0f} s, first step after {first}")
    for promise in outcome.promises:
        print(f"  {'kept  ' if promise.kept else BROKEN}  {promise.name:48s} {promise.observed}")
    whole = outcome.parts.get("step", 0.0)
    for part, seconds in sorted(outcome.parts.items(), key=lambda item: -item[1]):
        print(f"  {part:14s} {seconds:8.3f} s  {seconds / whole:6.1%}")
    if outcome.returncode:
        print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-80:]))
    sys.stdout.flush()


def keep(path: Path, outcome: Outcome, facts: dict[str, str | None]) -> None:
    """Add the run and its environment to the earlier results, or replace its own last result."""
    runs = json.loads(path.read_text())["runs"] if path.exists() else {}
    runs[outcome.name] = {"environment": facts, **outcome.as_dict()}
    write_record(path, {"runs": runs})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SPECS), help="comma-separated runs")
    parser.add_argument("--folder", type=Path, default=Path("build/gpu-smoke"))
    parser.add_argument("--timeout-s", type=float, default=900.0, help="of each run")
    parser.add_argument("--set", action="append", default=[], help="set a key of every run's spec")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the run that it has started ends with it
    missing = [name for name in ("torch", "vllm") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"gpu-smoke: {', '.join(missing)} not installed: it needs the `gpu` extra (uv sync --extra gpu)"
        )
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("gpu-smoke: no CUDA device here")
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    names = arguments.only.split(",")
    if any(SPECS[name] in (SPECS["opd"], SPECS["teachers"]) for name in names):
        words = [sys.executable, "-m", "tests.gpu_smoke.assets", str(folder / "assets")]
        subprocess.run(words, cwd=ROOT, check=True)  # its GPU memory ends with it
    facts = machine(*PACKAGES)
    outcomes = []
    for name in names:
        outcomes.append(run(name, folder, arguments.timeout_s, arguments.set))
        show(outcomes[-1], folder / f"{name}.log")
        keep(folder / "results.json", outcomes[-1], facts)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
