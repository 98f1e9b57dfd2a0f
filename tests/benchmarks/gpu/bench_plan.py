"""`make bench-plan`: what `--plan` says of fifteen distillations beside what they take on one H200, models of three families.

The plan's formulas and rates were fitted to none of them before its first measurement; what the host takes is since. `--predict` writes `plans.json` without a GPU; the predictions of a
measurement are committed before it. On a GPU each spec is a run of `opd.launch` with vLLM, as a user starts it, on random
weights of the named model's shape and a tokenizer of its size: the first step, which compiles, is left out. The JSON file is written
after each run, and a later call goes on with those that are not in it. With `--only` and a folder and a JSON file of its own each, several calls
may share a host of several GPUs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.gpu.bench_step import WARM_STEPS, run, save_models
from tests.benchmarks.gpu.phases import Phase
from tests.benchmarks.gpu.predict import GPU, HERE, predicted
from tests.gpu.facts import ROOT, machine
from tests.gpu_smoke.promises import PARTS

from opd.config import OpdSpec
from opd.config.parse import parse_tree
from opd.data.rows import write_files
from opd.data.toy.task import make_row, split_problems
from opd.memory.shapes import shape_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PLANS = HERE / "plans.json"
STEPS = 3
MOST_OFF = {"step_s": 0.20, "allocated_gib": 0.05}
"""What a prediction may be off by, as a share of what is measured."""
TEMPLATE_TOKENS, QUESTION_TOKENS = 8, 6
"""Of a prompt of the toy tokenizer: beside its questions, and of each."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A published model by its sizes."""

    family: str
    layers: int
    width: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool

    def config(self) -> PretrainedConfig:
        from transformers import LlamaConfig, Qwen2Config, Qwen3Config

        kinds = {"Qwen3": Qwen3Config, "Qwen2": Qwen2Config, "Llama": LlamaConfig}
        sizes: dict[str, Any] = {
            "vocab_size": self.vocab, "hidden_size": self.width, "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": 32_768, "tie_word_embeddings": self.tied,
            "architectures": [f"{self.family}ForCausalLM"],
        }  # fmt: skip
        if self.family != "Qwen2":
            sizes["head_dim"] = self.head_dim
        return kinds[self.family](**sizes)


def _qwen3(layers: int, width: int, mlp: int, heads: int, *, tied: bool = True) -> Model:
    return Model(
        family="Qwen3", layers=layers, width=width, mlp=mlp, heads=heads, kv_heads=8, head_dim=128, vocab=151_936,
        tied=tied,
    )  # fmt: skip


def _llama(layers: int, width: int, mlp: int, heads: int, *, tied: bool = True) -> Model:
    return Model(
        family="Llama", layers=layers, width=width, mlp=mlp, heads=heads, kv_heads=8, head_dim=width // heads,
        vocab=128_256, tied=tied,
    )  # fmt: skip


def _qwen2(layers: int, width: int, mlp: int, heads: int, kv_heads: int, vocab: int, *, tied: bool) -> Model:
    return Model(
        family="Qwen2", layers=layers, width=width, mlp=mlp, heads=heads, kv_heads=kv_heads, head_dim=128, vocab=vocab,
        tied=tied,
    )  # fmt: skip


MODELS = {
    "Qwen3-0.6B": _qwen3(28, 1024, 3072, 16),
    "Qwen3-1.7B": _qwen3(28, 2048, 6144, 16),
    "Qwen3-4B": _qwen3(36, 2560, 9728, 32),
    "Qwen3-8B": _qwen3(36, 4096, 12288, 32, tied=False),
    "Llama-3.2-1B": _llama(16, 2048, 8192, 32),
    "Llama-3.2-3B": _llama(28, 3072, 8192, 24),
    "Llama-3.1-8B": _llama(32, 4096, 14336, 32, tied=False),
    "Qwen2.5-1.5B": _qwen2(28, 1536, 8960, 12, 2, 151_936, tied=True),
    "Qwen2.5-7B": _qwen2(28, 3584, 18944, 28, 4, 152_064, tied=False),
}
ENTRIES = {"Qwen3": 151_669, "Qwen2": 151_665, "Llama": 128_256}
"""Of a family's tokenizer."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A distillation of one step's size; what it does not say is the spec's default."""

    student: str
    teacher: str
    prompts: int
    samples: int
    tokens: int
    mean: int | None = None
    questions: int = 1
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        rows = f"{self.prompts * self.samples} x {self.tokens:,}"
        mean = "" if self.mean is None else f", mean {self.mean:,}"
        prompt = "" if self.questions == 1 else f", prompts of {self.prompt_tokens}"
        return ", ".join([f"{self.teacher} -> {self.student}, {rows}{mean}{prompt}", *map(_shown, self.more.items())])

    @property
    def prompt_tokens(self) -> int:
        return TEMPLATE_TOKENS + QUESTION_TOKENS * self.questions

    @property
    def phase(self) -> Phase:
        return Phase(name="all", rows=self.prompts * self.samples, tokens=self.tokens, steps=STEPS, mean=self.mean)

    def tree(self, number: int, folder: Path) -> dict[str, Any]:
        """The spec."""
        tree: dict[str, Any] = {
            "kind": "opd", "name": f"plan{number}", "seed": 1,
            "model": {"path": str(folder / self.student)}, "teacher": {"path": str(folder / self.teacher)},
            "data": {
                "train": [str(folder / f"prompts{self.questions}.parquet")], "val": ["toy://heldout"], "num_workers": 0,
                "max_prompt_length": self.prompt_tokens, "max_response_length": self.tokens,
                "train_batch_size": self.prompts,
            },
            "rollout": {
                "num_samples": self.samples, "gpu_memory_utilization": 0.5, "num_agent_workers": 0, "logprobs_every": 1000,
            },
            "actor": {"ppo_mini_batch_size": self.prompts},
            "reward": {"function": "exact_match", "num_workers": 0},
            "trainer": {
                "gpus_per_node": 1, "save_freq": -1, "test_freq": -1, "val_before_train": False, "total_steps": STEPS,
            },
            "output": {"root": "out"},
        }  # fmt: skip
        for path, value in self.more.items():
            *sections, key = path.split(".")
            place = tree
            for section in sections:
                place = place.setdefault(section, {})
            place[key] = value
        return tree

    def lengths(self) -> list[int]:
        """Tokens of each response of a step; a run's steps have other prompts, and so other draws where lengths differ."""
        return [self.phase.length(prompt, sample) for prompt in range(self.prompts) for sample in range(self.samples)]


def _shown(item: tuple[str, Any]) -> str:
    return f"{item[0]} {json.dumps(item[1])}"


CASES = (
    Case(student="Qwen3-1.7B", teacher="Qwen3-8B", prompts=16, samples=2, tokens=4096),
    Case(student="Qwen3-4B", teacher="Qwen3-8B", prompts=32, samples=2, tokens=1024),
    Case(student="Qwen3-0.6B", teacher="Qwen3-8B", prompts=32, samples=4, tokens=2048, mean=400),
    Case(
        student="Qwen3-1.7B", teacher="Qwen3-8B", prompts=32, samples=4, tokens=1024,
        more={"teacher.offload": True, "actor.optimizer_offload": True},
    ),
    Case(
        student="Qwen3-1.7B", teacher="Qwen3-4B", prompts=64, samples=1, tokens=1024, questions=80,
        more={"actor.gradient_checkpointing": True},
    ),
    Case(
        student="Qwen3-1.7B", teacher="Qwen3-8B", prompts=32, samples=4, tokens=512, more={"model.lora.rank": 16},
    ),
    Case(student="Qwen3-0.6B", teacher="Qwen3-1.7B", prompts=64, samples=4, tokens=512),
    Case(student="Qwen3-0.6B", teacher="Qwen3-4B", prompts=128, samples=1, tokens=1024, questions=80),
    Case(student="Llama-3.2-1B", teacher="Llama-3.1-8B", prompts=32, samples=4, tokens=1024),
    Case(student="Llama-3.2-1B", teacher="Llama-3.2-3B", prompts=64, samples=4, tokens=1024, mean=300, questions=80),
    Case(student="Qwen2.5-1.5B", teacher="Qwen2.5-7B", prompts=16, samples=4, tokens=2048),
    Case(
        student="Qwen2.5-1.5B", teacher="Qwen2.5-7B", prompts=16, samples=8, tokens=2048, mean=500,
        more={"actor.ppo_mini_batch_size": 8},
    ),
    Case(student="Llama-3.2-3B", teacher="Llama-3.1-8B", prompts=32, samples=2, tokens=1024),
    Case(student="Qwen3-1.7B", teacher="Qwen3-4B", prompts=32, samples=2, tokens=4096, mean=1200),
    Case(student="Qwen3-4B", teacher="Qwen3-8B", prompts=32, samples=4, tokens=2048, mean=700),
)  # fmt: skip


def predict() -> dict[str, Any]:
    """What the plan says of each case."""
    out = {}
    for number, case in enumerate(CASES):
        spec = parse_tree(case.tree(number, Path("/"))).spec
        assert isinstance(spec, OpdSpec)
        student, teacher = (shape_of(MODELS[name].config().to_dict(), name) for name in (case.student, case.teacher))
        out[case.name] = predicted(spec, student, teacher, case.lengths(), prompt_tokens=case.prompt_tokens)
    return out


def measured(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the steps after the first; the memory is that of all."""
    steps = [row for row in rows if row["step"] > WARM_STEPS]
    labels = {label: key for label, key in PARTS if label != "update" and all(key in row for row in steps)}
    return {
        "step_s": statistics.median(row["timing/step_s"] for row in steps),
        "parts_s": {
            label.replace(" ", "_"): statistics.median(row[key] for row in steps) for label, key in labels.items()
        },
        "allocated_gib": max(row["perf/max_memory_allocated_gb"] for row in rows),
        "steps": len(steps),
    }


def off(said: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, float]:
    """How far each prediction lies above what was measured, relative to that."""
    return {key: said[key] / seen[key] - 1 for key in MOST_OFF}


def _models(folder: Path, numbers: Sequence[int]) -> None:
    """Those of the first of these cases, made by a process of its own; those that none of them reads are deleted, for disks are small."""
    case = CASES[numbers[0]]
    for name in MODELS.keys() - _read_by(numbers):
        shutil.rmtree(folder / name, ignore_errors=True)
    if any(not (folder / name / "tokenizer.json").exists() for name in (case.student, case.teacher)):
        words = [sys.executable, "-m", "tests.benchmarks.gpu.bench_plan", "--folder", str(folder), "--models"]
        subprocess.run([*words, *map(str, numbers)], cwd=ROOT, check=True)


def _read_by(numbers: Sequence[int]) -> set[str]:
    return {name for number in numbers for name in (CASES[number].student, CASES[number].teacher)}


def _make_models(folder: Path, numbers: Sequence[int]) -> None:
    """All of the first case's family that one of these cases reads, since starting torch takes longer than making one."""
    family, wanted = MODELS[CASES[numbers[0]].student].family, _read_by(numbers)
    configs = {
        name: model.config()
        for name, model in MODELS.items()
        if name in wanted and model.family == family and not (folder / name / "tokenizer.json").exists()
    }
    save_models(folder, configs, ENTRIES[family])


def _prompts(folder: Path, questions: int) -> None:
    path = folder / f"prompts{questions}.parquet"
    rows = [make_row(problem, "train") for problem in split_problems().train]
    for row in rows:
        [message] = row["prompt"]
        row["prompt"] = [message | {"content": message["content"] * questions}]
    write_files({path: rows}, {})


def measure(folder: Path, path: Path, numbers: Sequence[int], limit_s: float) -> None:
    """Run those of these cases that the file has no measurement of."""
    said = json.loads(PLANS.read_text())["predicted"]
    facts = machine("torch", "triton", "transformers", "verl", "vllm", "ray")
    print(facts, flush=True)
    if facts["device"] != GPU:
        raise SystemExit(f"bench-plan: the predictions are for {GPU}, and this is {facts['device']}")
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"measured": {}}
    for place, number in enumerate(numbers):
        case = CASES[number]
        if case.name in known["measured"]:
            continue
        models = folder / "models"
        _models(models, numbers[place:])
        _prompts(models, case.questions)
        tree = case.tree(number, models)
        shutil.rmtree(
            folder / tree["output"]["root"] / tree["name"], ignore_errors=True
        )  # of a call that was cut short
        latest: dict[str, Any] = {}
        run(folder, tree, [case.phase], [], limit_s, latest.update)
        rows = latest.get("rows", [])
        if latest.get("exit") != 0 or len(rows) < STEPS:
            print(f"{case.name}: {len(rows)} of {STEPS} steps; its log is {folder}/{tree['name']}.log", flush=True)
            continue
        seen = measured(rows) | {"start_s": latest["start_s"], "environment": facts}
        known["measured"][case.name] = seen
        path.write_text(json.dumps(known, indent=1) + "\n")
        apart = off(said[case.name], seen)
        verdicts = (
            f"{key} {seen[key]:.2f}, {said[case.name][key]} told ({apart[key]:+.1%}, "
            f"{'kept' if abs(apart[key]) <= most else f'beyond {most:.0%}'})"
            for key, most in MOST_OFF.items()
        )
        start = seen["start_s"]["first_step_starts_after"]
        print(f"{case.name}: {'; '.join(verdicts)}; first step after {start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true", help=f"write {PLANS.name} and end")
    parser.add_argument("--folder", type=Path, default=Path("build/bench-plan"))
    parser.add_argument("--json", type=Path, default=Path("build/bench-plan/plans.json"))
    parser.add_argument("--limit-s", type=float, default=600.0, help="after which a run is ended")
    every = range(len(CASES))
    parser.add_argument(
        "--only", type=int, nargs="+", choices=every, default=list(every), metavar="CASE", help="from 0"
    )
    parser.add_argument("--models", type=int, nargs="+", metavar="CASE", help="make the models of these cases and end")
    arguments = parser.parse_args()
    if arguments.predict:
        found = predict()
        for name, numbers in found.items():
            print(f"{name}\n   ", numbers)
        PLANS.write_text(json.dumps({"gpu": GPU, "predicted": found}, indent=1) + "\n")
        return
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.models is not None:
        _make_models(folder, arguments.models)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the run that it has started ends with it
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("bench-plan: no CUDA device here; --predict needs none")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    measure(folder, arguments.json, arguments.only, arguments.limit_s)


if __name__ == "__main__":
    main()
