"""Makes the evidence's committed models: lessons through the real environment, a teacher, and a student that stops early."""

import argparse
import hashlib
import importlib.metadata
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tests.agent_evidence.lessons import guesses, lessons, right_call
from tests.agent_evidence.models import STUDENT_RECIPE, TEACHER_RECIPE, Recipe, build_model, teach
from tests.agent_evidence.play import make_environment, play
from tests.agent_evidence.settings import settings
from tests.agent_evidence.tokenizer import build_tokenizer
from transformers import PreTrainedTokenizerBase

from opd.agent.dialogue import Dialogue
from opd_envs.travel.task import Question, parse_task
from opd_envs.travel.toy import ASSETS_DIR, LESSONS_SEED, STUDENT, TEACHER, heldout_rows, make_world, open_world, rows

NUM_LESSONS = 6000
LOG_EVERY = 20
PROVENANCE_FILE = "provenance.json"
RECIPES = {TEACHER: TEACHER_RECIPE, STUDENT: STUDENT_RECIPE}


def make_tokenizer(table: Sequence[dict[str, Any]]) -> PreTrainedTokenizerBase:
    """Return the tokenizer with the words of the tasks' prompts, calls and turns."""
    texts = ["system\nuser\nassistant\nget_price\ncity\nname\nprice\nerror\nanswer\n"] * len(table)
    for row in table:
        question = parse_task(row["reward_model"]["ground_truth"])
        assert isinstance(question, Question)
        texts += [row["prompt"][0]["content"], right_call(question)]
    return build_tokenizer(texts)


def make_model(
    name: str,
    recipe: Recipe,
    right: Sequence[Dialogue],
    guessed: Sequence[Dialogue],
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
    seed: int,
) -> dict[str, Any]:
    """Teach one model and save it; its provenance without the score."""
    started, num_steps = time.monotonic(), recipe.num_steps + recipe.num_habit_steps

    def report(step: int, loss: float) -> None:
        if step % LOG_EVERY == 0:
            print(f"{name}: step {step}/{num_steps} loss {loss:.4f} {time.monotonic() - started:.0f} s", flush=True)

    model = build_model(recipe, tokenizer, seed=seed)
    teach(model, right, guessed, recipe, pad=tokenizer.pad_token_id, seed=seed, on_step=report)
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # safetensors writes for its owner alone; a pod runs as another user
    tokenizer.save_pretrained(out)
    return {
        "recipe": asdict(recipe),
        "num_lessons": len(right),
        "num_parameters": model.num_parameters(),
        "weights_sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
    }


def main(argv: list[str] | None = None) -> None:
    """Make both models and write their provenance last."""
    parser = argparse.ArgumentParser(prog="python -m tests.agent_evidence.make_models", description=__doc__)
    parser.add_argument("--out", type=Path, default=ASSETS_DIR, metavar="DIR", help="default: the committed assets")
    parser.add_argument("--seed", type=int, default=0, help="initial weights and order of lessons (default: 0)")
    parser.add_argument("--only", choices=RECIPES, help="make this one; the other's folder and provenance stay")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # a sum's order, and so the weights, would depend on the number of threads
    with tempfile.TemporaryDirectory(prefix="opd-evidence-") as scratch:
        folder = make_world(Path(scratch) / "database")
        database = open_world(folder)
        table = rows(database, seed=LESSONS_SEED, split="train", num_rows=NUM_LESSONS)
        heldout = heldout_rows(database, seed=args.seed)
        tokenizer = make_tokenizer(table)
        tokenizer.save_pretrained(Path(scratch) / "tokenizer")
        environment = make_environment(Path(scratch) / "tokenizer", settings(folder))
        try:
            right = lessons(environment, tokenizer, table)
            guessed = guesses(environment, tokenizer, table, seed=args.seed)
        finally:
            environment.pool.close()
        print(f"{len(right)} lessons of up to {max(len(d.ids) for d in right)} tokens", flush=True)
        provenance: dict[str, Any] = {
            "made_by": "python -m tests.agent_evidence.make_models",
            "seed": args.seed,
            "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")},
        }
        if args.only is not None:
            provenance = json.loads((args.out / PROVENANCE_FILE).read_text()) | provenance
        for name, recipe in RECIPES.items():
            if args.only not in (None, name):
                continue
            provenance[name] = make_model(name, recipe, right, guessed, tokenizer, args.out / name, args.seed)
            played = play(args.out / name, heldout, settings(folder))
            score = sum(one.score for one in played) / len(played)
            provenance[name]["heldout_score_greedy"] = score
            print(f"{name}: greedy score {score:.3f} on {len(played)} held-out episodes", flush=True)
    (args.out / PROVENANCE_FILE).write_text(json.dumps(provenance, indent=2) + "\n")


if __name__ == "__main__":
    main()
