"""`make bench-step`: whole training steps with vLLM on one GPU or several, Qwen3-8B's shape into 1.7B's, with and without log-probabilities.

Random weights, a tokenizer of 151,669 entries on heads of 151,936 rows. Every second step asks vLLM for the answers'
log-probabilities (`rollout.logprobs_every: 2`), as every step once did, so both are measured by turns. One run of `opd.launch`,
as a user starts it, passes through all phases (batches of different sizes and lengths); the first step, which compiles, is
left out. With `--schedule carry` unfinished responses go on over the updates; the responses to the prompts of the data have the lengths
that they have under strict, and the first step is the warm fill's. Times are those of its metrics rows, how busy the GPU was is sampled by nvidia-smi, where the start's seconds went is
told by run and vLLM. The JSON file holds medians, no steps. It is written after every step, so that a run that is cut short counts as far as it came.
A second call in the same folder finds what the first one compiled: its start is the warm one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.gpu.phases import PHASES, Phase, as_text, phase_of
from tests.gpu.facts import ROOT, machine, write_record
from tests.gpu.processes import end
from tests.gpu_smoke.promises import PARTS, PEARSON, start_parts, training_rows
from tests.gpu_smoke.smoke import environment

from opd.inputs.fetch import CACHE_VARIABLE
from opd.runs.metrics import read_metrics
from opd.store.local import LocalStore

if TYPE_CHECKING:
    from transformers import PretrainedConfig

WARM_STEPS = 1
"""They compile, capture and allocate."""
NUM_PROMPTS = 32
SPEC = {
    "kind": "opd",
    "seed": 1,
    "data": {
        "train": ["toy://train"], "val": ["toy://heldout"], "max_prompt_length": 64, "max_response_length": 4096,
        "train_batch_size": NUM_PROMPTS, "num_workers": 0,
    },
    "rollout": {"num_samples": 4, "gpu_memory_utilization": 0.6, "logprobs_every": 2},
    "actor": {
        "ppo_mini_batch_size": NUM_PROMPTS, "weight_decay": 0,
    },
    "reward": {"function": "exact_match"},
    "trainer": {"gpus_per_node": 1, "save_freq": -1, "test_freq": -1, "val_before_train": False},
    "output": {"root": "out"},
}  # fmt: skip
IGNORE_EOS = "actor_rollout_ref.rollout.ignore_eos=true"  # a random model draws the end of an answer now and then
ALL_PHASES = {
    phase.name: phase
    for phase in (
        Phase(name="128 rows of 2,048", rows=128, tokens=2048, steps=5),
        Phase(name="256 rows of 2,048", rows=256, tokens=2048, steps=4),
        Phase(name="128 rows, log-normal", rows=128, tokens=4096, mean=700, steps=4),
        Phase(name="256 rows, log-normal", rows=256, tokens=4096, mean=700, steps=4),
    )
}
MODULE = "tests.benchmarks.gpu.phases"
# What vLLM's log says of its own start, in seconds.
VLLM_PARTS = {
    "model loading": r"Model loading took .*?([\d.]+) seconds",
    "graph capture": r"Graph capturing finished in ([\d.]+) secs",
    "compilation": r"\(compilation: ([\d.]+) s",
    "engine": r"init engine .*? took ([\d.]+) s",
}
CARRIED = (
    "rollout/age_mean",
    "rollout/age_max",
    "rollout/carried_share",
    "rollout/rounds",
    "rollout/rounds_waited",
    "rollout/tokens_read",
)
"""Means over the steps, of a run with the schedule carry."""
POLL_S = 2.0


class Busy:
    """Samples of how busy the run's GPUs are, four a second and GPU, by nvidia-smi."""

    def __init__(self, num_gpus: int) -> None:
        self._num_gpus = num_gpus

    def __enter__(self) -> Busy:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(self._num_gpus)))
        gpus = ",".join(visible.split(",")[: self._num_gpus])
        words = ["nvidia-smi", "-i", gpus, "--query-gpu=timestamp,utilization.gpu", "--format=csv,noheader,nounits", "-lms", "250"]  # fmt: skip
        self._samples: list[tuple[float, float]] = []
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._collect, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            stamp, _, percent = line.partition(", ")
            if percent.strip().isdigit():
                when = datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").timestamp()
                self._samples.append((when, float(percent) / 100))

    def share(self, start: float, stop: float) -> float | None:
        """Mean over the samples of a time span in seconds since the epoch; None where it has none."""
        inside = [share for when, share in list(self._samples) if start <= when <= stop]
        return statistics.mean(inside) if inside else None


def run(
    folder: Path,
    spec: Mapping[str, Any],
    phases: Sequence[Phase],
    sets: Sequence[str],
    limit_s: float,
    keep: Callable[[dict[str, Any], list[dict[str, Any]]], None],
) -> None:
    """One run through the phases, ended at the latest after `limit_s`; `keep` gets what is known after every step, and the steps.

    Args:
        spec: whose `name` is also that of its files in the folder.
        sets: `key=value` of the spec, which win.
    """
    name = spec["name"]
    (folder / f"{name}.yaml").write_text(json.dumps(spec))  # JSON is YAML
    words = [sys.executable, "-m", "opd.launch", f"{name}.yaml"]
    for item in sets:
        words += ["--set", item]
    words += ["--", IGNORE_EOS]
    own = {PHASES: as_text(phases), "VERL_USE_EXTERNAL_MODULES": MODULE, CACHE_VARIABLE: str(_cache(folder))}
    own["VLLM_LOGGING_LEVEL"] = "INFO"  # verl's is WARN, and the times of vLLM's own start are not told
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    started, log_path = time.time(), folder / f"{name}.log"
    with log_path.open("w") as log, Busy(spec["trainer"]["gpus_per_node"]) as busy:
        process = subprocess.Popen(
            words, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env=environment() | own | {"PYTHONPATH": path},
        )  # fmt: skip
        num_seen, code = 0, None
        try:
            while code is None and time.time() - started < limit_s:
                time.sleep(POLL_S)
                code = process.poll()
                rows = _rows(folder / "out" / name, busy)
                if len(rows) > num_seen or code is not None:
                    num_seen = len(rows)
                    keep(found(rows, phases, started, log_path.read_text(errors="replace")) | {"exit": code}, rows)
        finally:
            end(process)


def _cache(folder: Path) -> Path:
    """Of what a start compiles for those after it: the caller's, or the folder's own."""
    return Path(os.environ.get(CACHE_VARIABLE) or folder / "cache")


def _rows(run_dir: Path, busy: Busy) -> list[dict[str, Any]]:
    if not run_dir.exists():
        return []
    rows = training_rows([dict(row) for row in read_metrics([LocalStore(run_dir)])])
    return [row | {"gpu_busy": busy.share(row["time"] - row["timing_s/step"], row["time"])} for row in rows]


def found(rows: list[dict[str, Any]], phases: Sequence[Phase], started: float, log: str) -> dict[str, Any]:
    """Start, medians of each phase, and the tokens a second of all steps after the first."""
    out: dict[str, Any] = {"steps": len(rows), "start_s": {}, "phases": {}}
    if rows:
        first, parts = rows[0], start_parts(rows)
        vllm = {
            name: [float(text) for text in re.findall(pattern, log)] for name, pattern in VLLM_PARTS.items()
        }  # fmt: skip
        out["start_s"] = {
            "first_step_starts_after": first["time"] - first["timing_s/step"] - started,
            "first_step": first["timing_s/step"],
            "parts": parts,
            "vllm": vllm,
        }
    for phase in phases:
        measured = [
            row for row in rows if row["step"] > WARM_STEPS and phase_of(phases, int(row["step"])).name == phase.name
        ]
        if measured:
            out["trained_tokens_per_s"] = tokens_per_second(rows[WARM_STEPS:])
            out["step_s"] = statistics.median(row["timing_s/step"] for row in rows[WARM_STEPS:])
            out["phases"][phase.name] = halves(measured)
    return out


def tokens_per_second(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the trained tokens a second of all these steps together."""
    return sum(row["opd/num_tokens"] for row in rows) / sum(row["timing_s/step"] for row in rows)


def halves(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Medians over the steps with log-probabilities and over those without."""
    out = {}
    for name, has in {"with log-probabilities": True, "without": False}.items():
        steps = [row for row in rows if (PEARSON in row) == has]
        if not steps:
            continue
        parts = {label: key for label, key in PARTS if label != "update" and all(key in row for row in steps)}
        medians = {label: statistics.median(row[key] for row in steps) for label, key in parts.items()}
        whole = statistics.median(row["timing_s/step"] for row in steps)
        busy = [row["gpu_busy"] for row in steps if row["gpu_busy"] is not None]
        out[name] = {
            "steps": len(steps),
            **medians,
            "rest": whole - sum(medians.values()),
            "step": whole,
            "trained_tokens": statistics.median(row["opd/num_tokens"] for row in steps),
            "trained_tokens_per_s": statistics.median(row["opd/num_tokens"] / row["timing_s/step"] for row in steps),
            "trained_tokens_per_s_in_all": tokens_per_second(steps),
            **{name: statistics.mean(row[name] for row in steps) for name in CARRIED if name in steps[0]},
            "allocated_gib": max(row["perf/max_memory_allocated_gb"] for row in steps),
            "gpu_busy": statistics.median(busy) if busy else float("nan"),
        }
    return out


def show(name: str, result: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Print the last step, and at the end the medians."""
    start = result["start_s"]
    if len(rows) == 1:
        print(
            f"{name}: first step starts after {start['first_step_starts_after']:.0f} s, takes {start['first_step']:.0f} s"
        )
        print("  ", {key: round(value, 1) for key, value in start["parts"].items()}, "vLLM:", start["vllm"])
    if rows:
        step = {label: round(rows[-1][key], 2) for label, key in PARTS if key in rows[-1]}
        print(f"{name}: step {rows[-1]['step']}: {rows[-1]['timing_s/step']:.2f} s", step, flush=True)
    if result["exit"] is not None:
        for phase, both in result["phases"].items():
            for half, numbers in both.items():
                print(f"{phase:22s} {half:24s}", {key: round(value, 3) for key, value in numbers.items()}, flush=True)


def save_models(folder: Path, configs: Mapping[str, PretrainedConfig], num_entries: int) -> None:
    """A folder for each model, random in bf16, with a tokenizer of `num_entries`."""
    import torch
    from tests.gpu_smoke.assets import widened_tokenizer
    from transformers import AutoModelForCausalLM

    tokenizer = widened_tokenizer(num_entries)
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    for seed, (name, config) in enumerate(configs.items()):
        torch.manual_seed(seed)
        config.update(special)
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.generation_config.update(**special)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def spec_of(arguments: argparse.Namespace, name: str, folder: Path) -> dict[str, Any]:
    """The run's, without `--set` and the number of steps."""
    spec: dict[str, Any] = json.loads(json.dumps(SPEC)) | {"name": name}
    spec["rollout"]["schedule"] = arguments.schedule
    if arguments.in_flight:
        spec["rollout"]["in_flight"] = arguments.in_flight * arguments.gpus
    spec["model"], spec["teacher"] = ({"path": str(folder / role)} for role in ("student", "teacher"))
    spec["trainer"]["gpus_per_node"] = arguments.gpus
    spec["data"]["train_batch_size"] = spec["actor"]["ppo_mini_batch_size"] = NUM_PROMPTS * arguments.gpus
    return spec


def parser_of_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", nargs="+", choices=ALL_PHASES, default=list(ALL_PHASES)[:3], metavar="PHASE")
    parser.add_argument("--steps", type=int, help="of each phase; the first step of the run counts in none")
    parser.add_argument("--gpus", type=int, default=1, help="of this host; each has the phase's rows of its own")
    parser.add_argument("--schedule", choices=("strict", "carry"), default="strict", help="carry: one phase a run")
    parser.add_argument("--in-flight", type=int, help="responses that carry generates at once, on each GPU")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set a key of the spec")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="after which the run is ended")
    parser.add_argument("--folder", type=Path, default=Path("build/bench-step"))
    parser.add_argument("--json", type=Path, default=Path("build/bench-step/step.json"))
    parser.add_argument("--models-only", action="store_true", help="make the models and end")
    return parser


def main() -> None:
    parser = parser_of_arguments()
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the run that it has started ends with it
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("bench-step: no CUDA device here; it measures whole steps with vLLM")
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "teacher/tokenizer.json"
    if arguments.models_only:
        from tests.benchmarks.gpu.bench_update import NUM_ENTRIES, PAIR

        save_models(folder, {name: shape.config() for name, shape in PAIR.items()}, NUM_ENTRIES)
        return
    if not made.exists():  # in a process of its own, whose GPU memory ends with it
        words = [sys.executable, "-m", "tests.benchmarks.gpu.bench_step", "--models-only", "--folder", str(folder)]
        subprocess.run(words, cwd=ROOT, check=True)
    facts = machine("torch", "triton", "transformers", "verl", "vllm", "ray")
    print(facts, flush=True)
    runs = json.loads(arguments.json.read_text())["runs"] if arguments.json.exists() else {}
    number = len(list(folder.glob("step*.log")))
    # vLLM finds what it compiled for a model at the same path.
    is_warm = number > 0 and (_cache(folder) / "compiled").exists()
    name = f"{number}: {arguments.schedule}, {'warm' if is_warm else 'cold'} start"
    if arguments.schedule == "carry" and len(arguments.phases) > 1:
        parser.error("--schedule carry: name one phase, for responses outlast a step")
    phases = [ALL_PHASES[phase] for phase in arguments.phases]
    if arguments.steps:
        phases = [Phase(**vars(phase) | {"steps": arguments.steps}) for phase in phases]

    def keep(result: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        runs[name] = result
        write_record(arguments.json, {"environment": facts, "runs": runs})
        show(name, result, rows)

    spec = spec_of(arguments, f"step{number}", folder)
    phases = [Phase(**vars(phase) | {"rows": phase.rows * arguments.gpus}) for phase in phases]
    spec["trainer"]["total_steps"] = sum(phase.steps for phase in phases)
    run(folder, spec, phases, arguments.set, arguments.limit_s, keep)


if __name__ == "__main__":
    main()
