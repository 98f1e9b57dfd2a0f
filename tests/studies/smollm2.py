"""Program of the study on SmolLM2: runs its arms over paired seeds, several at once, and measures what the students forgot.

`opdctl compare --store build/studies/store --base all -m METRIC` prints the paired differences with 95 % intervals.
smollm2.yaml has the primary comparisons. The arm `served` needs `vllm serve build/studies/teacher --max-logprobs 16 --api-server-count 8`.

    python -m tests.studies.smollm2 --prepare student,rates,expert
    python -m tests.studies.smollm2 --at-once 10
    python -m tests.studies.smollm2 --arms all,paced --text
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from opd.quickstart.__main__ import convert_student
from opd.quickstart.language import MODEL, prepare

SPEC = Path(__file__).with_suffix(".yaml")
OUT = Path("build/studies")
RATES = OUT / "store/rates/eval/pass_rates.parquet"
ARMS: dict[str, tuple[str, ...]] = {
    "all": (),
    "soft-or-20": ("opd.importance.tokens.score=soft_or", "opd.importance.tokens.ratio=0.2"),
    "random-20": ("opd.importance.tokens.score=random", "opd.importance.tokens.ratio=0.2"),
    "paced": ("opd.importance.problems.weights=competence", f"opd.importance.problems.pass_rates={RATES}"),
    "dense": (f"teacher.path={OUT}/expert-model",),
    "sparse": (),
    "served": ("teacher.url=http://127.0.0.1:8000/v1", "teacher.top_k=16"),
}
BATCH, LENGTH = 64, 512
"""Held-out text: this many pieces of this many tokens."""


def launch(spec: Path, name: str, sets: Sequence[str]) -> int:
    """Run one experiment with its log next to its folder; return its exit code."""
    words = [sys.executable, "-m", "opd.launch", str(spec), "--name", name]
    for item in sets:
        words += ["--set", item]
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / f"{name}.log").open("w") as log:
        code = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    print(f"{name}: exit {code}", flush=True)
    return code


def variant(name: str, kind: str, changes: dict[str, dict[str, Any]]) -> Path:
    """Write the file of another kind with the study's model, data and output."""
    spec = yaml.safe_load(SPEC.read_text())
    kept = {"sft": ("data",), "passrate": ("data", "rollout", "reward"), "grpo": ("data", "rollout", "reward")}[kind]
    tree = {key: spec[key] for key in ("model", "output", "store", *kept)} | {"kind": kind}
    tree["trainer"] = {"gpus_per_node": 1}
    for section, values in changes.items():
        tree[section] = tree.get(section, {}) | values
    if kind == "passrate":
        del tree["data"]["val"], tree["rollout"]["num_samples"], tree["rollout"]["val"]
    OUT.mkdir(parents=True, exist_ok=True)
    file = OUT / f"{name}.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def by_reward(name: str, model: str, problems: int, steps: int) -> Path:
    """Write the file of GRPO with eight answers a problem."""
    return variant(
        name,
        "grpo",
        {
            "model": {"path": model},
            "data": {"train_batch_size": problems},
            "rollout": {"num_samples": 8},
            "actor": {"learning_rate": 1e-5, "num_warmup_steps": 4, "weight_decay": 0, "ppo_mini_batch_size": problems},
            "trainer": {"total_steps": steps, "save_freq": steps, "test_freq": steps, "val_before_train": True},
        },
    )


def make_student() -> int:
    """Make the teacher, and the student by worked solutions."""
    prepare(OUT)
    learning = {"learning_rate": 1e-4, "num_warmup_steps": 4, "weight_decay": 0, "ppo_mini_batch_size": 64}
    times = {"total_steps": 120, "save_freq": 120, "test_freq": 120}
    code = launch(
        variant("warm", "sft", {"model": {"path": str(MODEL)}, "actor": learning, "trainer": times}), "warm", ()
    )
    if not code:
        convert_student(OUT / "warm", OUT / "student")
    return code


def make_rates() -> int:
    """Measure the student's pass rates, eight answers a training problem."""
    return launch(variant("rates", "passrate", {"data": {"train_batch_size": 512}}), "rates", ())


def make_expert() -> int:
    """Improve the teacher by GRPO."""
    code = launch(by_reward("expert", str(OUT / "teacher"), 32, 100), "expert", ())
    if not code:
        convert_student(OUT / "expert", OUT / "expert-model")
    return code


MADE = {"student": make_student, "rates": make_rates, "expert": make_expert}


def forgotten(folder: Path, tokens: Sequence[int]) -> float:
    """Return a model's mean nats a token of the held-out text."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").to(device)
    total = 0.0
    with torch.no_grad():
        for ids in torch.tensor(tokens, device=device).view(BATCH, LENGTH).split(8):
            total += float(model(input_ids=ids, labels=ids).loss) * len(ids)
    return total / BATCH


def measure_text(runs: Sequence[str]) -> dict[str, float]:
    """Return nats a token of the text of Python's language reference, of the start model and of each run's last checkpoint."""
    from pydoc_data.topics import topics

    from transformers import AutoTokenizer

    text = "\n".join(topics[name] for name in sorted(topics))
    tokens = AutoTokenizer.from_pretrained(MODEL)(text)["input_ids"][: BATCH * LENGTH]
    folders = {"start": OUT / "student"} | {run: convert_student(OUT / run, OUT / "models" / run) for run in runs}
    return {name: forgotten(folder, tokens) for name, folder in folders.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--at-once", type=int, default=1, help="runs that share the GPU")
    parser.add_argument("--prepare", metavar="PARTS", help=f"make what arms need, of {', '.join(MADE)}")
    parser.add_argument("--text", action="store_true", help="measure held-out text of finished runs")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="set a key of every run")
    args = parser.parse_args()
    runs = {f"{arm}-s{seed}": (arm, seed) for seed, arm in product(args.seeds.split(","), args.arms.split(","))}
    if args.text:
        found = measure_text(list(runs))
        (OUT / "text.json").write_text(json.dumps(found, indent=1))
        print("\n".join(f"{name}: {value:.4f} nats a token" for name, value in found.items()))
        return 0
    if args.prepare:
        return max(MADE[part]() for part in args.prepare.split(","))
    sparse = by_reward("sparse", str(OUT / "student"), 8, 40)
    with ThreadPoolExecutor(args.at_once) as pool:
        return max(
            pool.map(
                lambda name: launch(
                    sparse if runs[name][0] == "sparse" else SPEC,
                    name,
                    (f"seed={runs[name][1]}", *ARMS[runs[name][0]], *args.set),
                ),
                runs,
            )
        )


if __name__ == "__main__":
    sys.exit(main())
