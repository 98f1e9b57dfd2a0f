"""Makes the committed toy models: trains teacher and student, measures them on held-out problems, writes the folders."""

import argparse
import hashlib
import importlib.metadata
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from opd.data.toy import ASSETS_DIR
from opd.data.toy.evaluate import greedy_accuracy
from opd.data.toy.models import STUDENT, TEACHER, ToyShape, build_model
from opd.data.toy.sft import SftConfig, train_sft
from opd.data.toy.task import SPLIT_SALT, Problem, assert_disjoint, split_problems
from opd.data.toy.tokenizer import build_tokenizer

SHAPES = {"teacher": TEACHER, "student": STUDENT}
PROVENANCE_FILE = "provenance.json"
WEIGHTS_FILE = "model.safetensors"
LOG_EVERY = 50
EXAMPLE = "example:\n  python -m opd.data.toy.make_models --out build/toy-models --seed 0"


def sft_configs(seed: int) -> dict[str, SftConfig]:
    """How each model is trained.

    The student has a habit to unlearn: four in five of its lessons drop every carry, so that greedily it is right
    only where nothing is carried. A student that merely stopped early starts as low, but has the very circuits still
    to build and needs several times as many rollouts. One that was never shown a carry is sure of its wrong answers and
    does not learn at all; one that only counts one too many recovers even under a random teacher, which proves nothing.
    """
    return {
        "teacher": SftConfig(num_steps=700, learning_rate=1.5e-3, seed=seed),
        "student": SftConfig(num_steps=1200, learning_rate=2e-3, dropped_carry_fraction=0.8, seed=seed),
    }


def problems_sha256(problems: Sequence[Problem]) -> str:
    """SHA-256 of the questions, one a line: names the exact training set, whatever code chose it."""
    return hashlib.sha256("\n".join(problem.question for problem in problems).encode()).hexdigest()


def make_model(
    name: str, shape: ToyShape, config: SftConfig, tokenizer: PreTrainedTokenizerBase, out: Path
) -> dict[str, Any]:
    """Train one model, save it to `out`, read it back, measure that, and return its provenance."""
    splits = split_problems()
    problems = sorted(set(splits.train) - set(splits.validation))
    assert_disjoint(problems, splits.heldout)
    started = time.monotonic()

    def report(step: int, loss: float) -> None:
        if step % LOG_EVERY == 0:
            seconds = time.monotonic() - started
            left = seconds / step * (config.num_steps - step)
            print(
                f"{name}: step {step}/{config.num_steps} loss {loss:.4f} {seconds:.0f} s, {left:.0f} s left", flush=True
            )

    model = build_model(shape, tokenizer, seed=config.seed)
    train_sft(model, tokenizer, problems, config, report)
    model.to(shape.dtype)  # type: ignore[arg-type]  # transformers wraps Module.to without its types
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # safetensors writes for its owner alone; a pod runs as another user
    tokenizer.save_pretrained(out)
    validation, heldout = (saved_accuracy(out, side) for side in (splits.validation, splits.heldout))
    print(f"{name}: greedy accuracy {validation:.3f} on validation, {heldout:.3f} held out; written to {out}")
    return {
        "sft": asdict(config),
        "num_train_problems": len(problems),
        "train_problems_sha256": problems_sha256(problems),
        "num_heldout_problems_excluded": len(splits.heldout),
        "heldout_problems_sha256": problems_sha256(splits.heldout),
        "validation_accuracy_greedy": validation,
        "heldout_accuracy_greedy": heldout,
        "weights_sha256": hashlib.sha256((out / WEIGHTS_FILE).read_bytes()).hexdigest(),
    }


def saved_accuracy(folder: Path, problems: Sequence[Problem]) -> float:
    """Greedy accuracy of a saved folder, loaded as anyone would load it (in the dtype it was saved in)."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    return greedy_accuracy(model, AutoTokenizer.from_pretrained(folder), problems)


def main(argv: list[str] | None = None) -> None:
    """Make both models and write their provenance last."""
    parser = argparse.ArgumentParser(
        prog="python -m opd.data.toy.make_models",
        description="Train the toy teacher and the student's start (some minutes on one core) and save them.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=ASSETS_DIR, metavar="DIR", help="default: the committed assets")
    parser.add_argument("--seed", type=int, default=0, help="initial weights and data order (default: 0)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # a sum's order, and so the weights, would depend on the number of threads
    tokenizer = build_tokenizer()
    provenance: dict[str, Any] = {
        "made_by": "python -m opd.data.toy.make_models",
        "split_salt": SPLIT_SALT,
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")},
    }
    for name, config in sft_configs(args.seed).items():
        provenance[name] = make_model(name, SHAPES[name], config, tokenizer, args.out / name)
    (args.out / PROVENANCE_FILE).write_text(json.dumps(provenance, indent=2) + "\n")


if __name__ == "__main__":
    main()
