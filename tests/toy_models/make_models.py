"""Training of the committed toy models: teacher and student, measured on held-out problems, as Hugging Face folders."""

import argparse
import hashlib
import importlib.metadata
import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tests.toy_models.models import STUDENT, TEACHER, build_tiny_qwen3
from tests.toy_models.tokenizer import MODEL_MAX_LENGTH, build_tokenizer
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from opd.data.toy import ASSETS_DIR
from opd.data.toy.task import SPLIT_SALT, Problem, split_problems
from opd.rewards.scorers import exact_match

SHAPES = {"teacher": TEACHER, "student": STUDENT}
LOG_EVERY = 50
MAX_NEW_TOKENS = 8
"""Twice the answer's three digits and end of turn: a response that runs on is wrong, not cut to a right one."""
BATCH_SIZE, NUM_WARMUP_STEPS, ADAM_BETAS, GRAD_CLIP = 256, 20, (0.9, 0.98), 1.0


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """Training of one toy model."""

    num_steps: int
    """Steps, and the length of the cosine schedule; fixed, so that no held-out problem decides when to stop."""
    learning_rate: float
    seed: int
    dropped_carry_fraction: float = 0.0
    """Share of the training problems whose taught answer drops every carry."""


def sft_configs(seed: int) -> dict[str, SftConfig]:
    """Return the training of each model.

    Four in five of the student's lessons drop every carry, so that greedily it is right only where nothing is carried.
    A student that stops early starts as low, but needs several times as many rollouts. A student that never saw a carry
    is sure of its wrong answers and does not learn.
    """
    return {
        "teacher": SftConfig(num_steps=700, learning_rate=1.5e-3, seed=seed),
        "student": SftConfig(num_steps=1200, learning_rate=2e-3, dropped_carry_fraction=0.8, seed=seed),
    }


def problems_sha256(problems: Sequence[Problem]) -> str:
    """Return the SHA-256 of the questions, one a line."""
    return hashlib.sha256("\n".join(problem.question for problem in problems).encode()).hexdigest()


def prompt_token_ids(
    tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], *, enable_thinking: bool = True
) -> torch.Tensor:
    """Return token ids [P, prompt_len] int64 of the problems' generation prompts (all of one length: operands are padded)."""
    conversations = [problem.messages for problem in problems]
    encoded = tokenizer.apply_chat_template(
        conversations, add_generation_prompt=True, return_dict=False, enable_thinking=enable_thinking
    )
    return torch.tensor(encoded)


@torch.no_grad()
def greedy_accuracy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem]) -> float:
    """Return the share of the problems that the model answers greedily, scored by the reward function of the task's runs."""
    prompts = prompt_token_ids(tokenizer, problems)
    output = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=MAX_NEW_TOKENS, do_sample=False
    )
    answers = tokenizer.batch_decode(output[:, prompts.shape[1] :], skip_special_tokens=True)
    return sum(exact_match(a, p.answer).acc for a, p in zip(answers, problems, strict=True)) / len(problems)


def train_sft(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    config: SftConfig,
) -> None:
    """Train in place by cross-entropy on the answer tokens, eos included."""
    coin = random.Random(config.seed)
    answers = [
        p.answer_without_carries if coin.random() < config.dropped_carry_fraction else p.answer for p in problems
    ]
    responses = tokenizer([answer + tokenizer.eos_token for answer in answers], return_tensors="pt")["input_ids"]
    # Steps take turns with the template's two generation prompts, so that the models answer after either.
    styles = [prompt_token_ids(tokenizer, problems, enable_thinking=thinking) for thinking in (True, False)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=ADAM_BETAS, weight_decay=0.0)

    def lr_factor(step: int) -> float:
        return min(1.0, (step + 1) / NUM_WARMUP_STEPS) * 0.5 * (1.0 + math.cos(math.pi * step / config.num_steps))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
    generator = torch.Generator().manual_seed(config.seed)
    model.train()
    for step in range(1, config.num_steps + 1):
        prompts = styles[step % len(styles)]
        rows = torch.randperm(len(problems), generator=generator)[:BATCH_SIZE]
        batch = torch.cat([prompts[rows], responses[rows]], dim=1)
        logits = model(input_ids=batch).logits[:, prompts.shape[1] - 1 : -1]
        loss = functional.cross_entropy(logits.flatten(0, 1), responses[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        schedule.step()
        if step % LOG_EVERY == 0:
            print(f"{name}: step {step}/{config.num_steps} loss {loss.item():.4f}", flush=True)
    model.eval()


def make_model(name: str, config: SftConfig, tokenizer: PreTrainedTokenizerBase, out: Path) -> dict[str, Any]:
    """Train one model, save it to `out`, measure the saved folder, and return its provenance."""
    splits = split_problems()
    problems = sorted(set(splits.train) - set(splits.validation))
    shape = SHAPES[name]
    model = build_tiny_qwen3(
        tokenizer,
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_vocab_rows=shape.num_vocab_rows,
        max_position_embeddings=MODEL_MAX_LENGTH,
        seed=config.seed,
    )
    train_sft(name, model, tokenizer, problems, config)
    model.to(shape.dtype)
    model.save_pretrained(out)
    weights = out / "model.safetensors"
    weights.chmod(0o644)  # safetensors writes for its owner alone; a pod runs as another user
    tokenizer.save_pretrained(out)
    saved, reader = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    validation, heldout = (greedy_accuracy(saved, reader, side) for side in (splits.validation, splits.heldout))
    print(f"{name}: greedy accuracy {validation:.3f} on validation, {heldout:.3f} held out; written to {out}")
    return {
        "sft": asdict(config),
        "num_train_problems": len(problems),
        "train_problems_sha256": problems_sha256(problems),
        "num_heldout_problems_excluded": len(splits.heldout),
        "heldout_problems_sha256": problems_sha256(splits.heldout),
        "validation_accuracy_greedy": validation,
        "heldout_accuracy_greedy": heldout,
        "weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
    }


def main(argv: list[str] | None = None) -> None:
    """Make both models, and write their provenance last."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.toy_models.make_models",
        description="Train the toy teacher and the student's start (some minutes on one core) and save them.",
    )
    parser.add_argument("--out", type=Path, default=ASSETS_DIR, metavar="DIR", help="default: the committed assets")
    parser.add_argument("--seed", type=int, default=0, help="initial weights and data order (default: 0)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # a sum's order, and so the weights, would depend on the number of threads
    tokenizer = build_tokenizer()
    provenance: dict[str, Any] = {
        "made_by": "python -m tests.toy_models.make_models",
        "split_salt": SPLIT_SALT,
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")},
    }
    for name, config in sft_configs(args.seed).items():
        provenance[name] = make_model(name, config, tokenizer, args.out / name)
    (args.out / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")


if __name__ == "__main__":
    main()
