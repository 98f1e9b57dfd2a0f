"""`make bench-step`: whole training steps with vLLM on one GPU, Qwen3-8B's shape into 1.7B's, with and without log-probabilities.

Random weights, a tokenizer of 151,669 entries on heads of 151,936 rows. Every second step asks vLLM for the answers'
log-probabilities (`rollout.logprobs_every: 2`), as every step once did, so both are measured by turns in one run. Each run
is `opd.launch` as a user starts it; times are those of its metrics rows, and how busy the GPU was is sampled by nvidia-smi.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu.lengths import MEAN_TOKENS
from tests.gpu.facts import ROOT, machine
from tests.gpu_smoke.promises import PEARSON, step_parts, training_rows
from tests.gpu_smoke.smoke import environment

from opd.runs.metrics import read_metrics
from opd.store.local import LocalStore

WARM_STEPS = 2  # as `step_parts` leaves out: they compile, capture and allocate
SPEC = {
    "kind": "opd",
    "seed": 1,
    "data": {"train": ["toy://train"], "val": ["toy://heldout"], "max_prompt_length": 64, "num_workers": 0},
    "rollout": {
        "num_samples": 4, "gpu_memory_utilization": 0.4, "num_agent_workers": 0, "logprobs_every": 2, "max_num_seqs": 512,
    },
    "actor": {"ppo_micro_batch_size_per_gpu": 4, "gradient_checkpointing": False, "weight_decay": 0},
    "opd": {"activation_budget": 0.35},
    "reward": {"function": "exact_match", "num_workers": 0},
    "trainer": {"gpus_per_node": 1, "save_freq": -1, "test_freq": -1, "val_before_train": False},
    "output": {"root": "out"},
}  # fmt: skip
IGNORE_EOS = "actor_rollout_ref.rollout.ignore_eos=true"  # a random model draws the end of an answer now and then


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Answers of one length, or with `mean` of log-normal lengths up to it."""

    rows: int
    tokens: int
    mean: int | None = None

    def run(self, folder: Path, name: str, steps: int) -> list[dict[str, Any]]:
        """The run's metrics rows, each with the share of its step in which the GPU was busy."""
        spec = json.loads(json.dumps(SPEC)) | {"name": name}
        prompts = self.rows // spec["rollout"]["num_samples"]
        spec["model"], spec["teacher"] = ({"path": str(folder / role)} for role in ("student", "teacher"))
        spec["data"] |= {"train_batch_size": prompts, "max_response_length": self.tokens}
        spec["actor"]["ppo_mini_batch_size"] = prompts
        spec["trainer"]["total_steps"] = steps
        (folder / f"{name}.yaml").write_text(json.dumps(spec))  # JSON is YAML
        words = [sys.executable, "-m", "opd.launch", f"{name}.yaml", "--no-env", "--", IGNORE_EOS]
        own = {} if self.mean is None else {MEAN_TOKENS: str(self.mean), "VERL_USE_EXTERNAL_MODULES": LENGTHS}
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with (folder / f"{name}.log").open("w") as log, Busy() as busy:
            subprocess.run(
                words, cwd=folder, check=True, stdout=log, stderr=subprocess.STDOUT,
                env=environment() | own | {"PYTHONPATH": path},
            )  # fmt: skip
        rows = training_rows([dict(row) for row in read_metrics(LocalStore(folder / "out" / name)).rows])
        return [row | {"gpu_busy": busy.share(row["time"] - row["timing/step_s"], row["time"])} for row in rows]


LENGTHS = "tests.benchmarks.gpu.lengths"
PROFILES = {
    "128 rows of 2,048": Profile(rows=128, tokens=2048),
    "256 rows of 2,048": Profile(rows=256, tokens=2048),
    "128 rows, log-normal": Profile(rows=128, tokens=4096, mean=700),
    "256 rows, log-normal": Profile(rows=256, tokens=4096, mean=700),
}


class Busy:
    """Samples of how busy the first visible GPU is, four a second, by nvidia-smi."""

    def __enter__(self) -> Busy:
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        words = ["nvidia-smi", "-i", gpu, "--query-gpu=timestamp,utilization.gpu", "--format=csv,noheader,nounits", "-lms", "250"]  # fmt: skip
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        out, _err = self._process.communicate()
        self._samples = []
        for line in out.splitlines():
            stamp, _, percent = line.partition(", ")
            if percent.strip().isdigit():
                when = datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").timestamp()
                self._samples.append((when, float(percent) / 100))

    def share(self, start: float, stop: float) -> float | None:
        """Mean over the samples of a time span in seconds since the epoch; None where it has none."""
        inside = [share for when, share in self._samples if start <= when <= stop]
        return statistics.mean(inside) if inside else None


def save_models(folder: Path) -> None:
    """`folder/student` and `folder/teacher`, random in bf16."""
    import torch
    from tests.benchmarks.gpu.worker_alone import NUM_ENTRIES, QWEN3_1_7B, QWEN3_8B
    from tests.gpu_smoke.assets import widened_tokenizer
    from transformers import AutoModelForCausalLM

    tokenizer = widened_tokenizer(NUM_ENTRIES)
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    for seed, (name, shape) in enumerate({"student": QWEN3_1_7B, "teacher": QWEN3_8B}.items()):
        torch.manual_seed(seed)
        config = shape.config()
        config.update(special)
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.generation_config.update(**special)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def halves(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Medians over the steps with log-probabilities and over those without, the warm-up left out of both."""
    out = {}
    measured = rows[WARM_STEPS:]
    for name, has in {"with log-probabilities": True, "without": False}.items():
        steps = [row for row in measured if (PEARSON in row) == has]
        seconds = [row["timing/step_s"] for row in steps]
        tokens = [row["opd/num_tokens"] / row["timing/step_s"] for row in steps]
        busy = [row["gpu_busy"] for row in steps if row["gpu_busy"] is not None]
        out[name] = {
            "steps": len(steps),
            **step_parts([*rows[:WARM_STEPS], *steps]),
            "step": statistics.median(seconds),
            "trained_tokens_per_s": statistics.median(tokens),
            "gpu_busy": statistics.median(busy) if busy else float("nan"),
        }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=list(PROFILES), metavar="PROFILE")
    parser.add_argument("--steps", type=int, default=6, help="of each run, two of them warm-up")
    parser.add_argument("--folder", type=Path, default=Path("build/bench-step"))
    parser.add_argument("--json", type=Path, default=Path("build/bench-step/step.json"))
    parser.add_argument("--models-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("bench-step: no CUDA device here; it measures whole steps with vLLM on one")
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.models_only:
        save_models(folder)
        return
    if not (folder / "teacher/tokenizer.json").exists():  # in a process of its own, whose GPU memory ends with it
        words = [sys.executable, "-m", "tests.benchmarks.gpu.bench_step", "--models-only", "--folder", str(folder)]
        subprocess.run(words, cwd=ROOT, check=True)
    facts = machine("torch", "triton", "transformers", "verl", "vllm", "ray")
    print(facts, flush=True)
    runs: dict[str, Any] = {}
    for number, name in enumerate(arguments.profiles):
        started = time.time()
        rows = PROFILES[name].run(folder, f"step{number}", arguments.steps)
        first = rows[0]["time"] - rows[0]["timing/step_s"] - started
        runs[name] = {"first_step_starts_after_s": first, "medians": halves(rows), "rows": rows}
        for half, numbers in runs[name]["medians"].items():
            print(f"{name:22s} {half:24s}", {key: round(value, 3) for key, value in numbers.items()}, flush=True)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"environment": facts, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
