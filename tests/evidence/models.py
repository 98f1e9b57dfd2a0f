"""Teacher and student starts of the studies: taught once from a seed, kept as files that later runs read."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from tests.agent_evidence.models import Recipe, build_model, teach
from tests.evidence.chains import STUDENT_WORD_WEIGHTS, TEACHER_WORD_WEIGHTS, Chain, draw
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from opd.data.toy.tokenizer import build_tokenizer

NUM_LESSONS = 12_000
TEACHER, TEACHER_SEED = "teacher", 0
TEACHER_RECIPE = Recipe(num_layers=3, hidden_size=96, num_steps=800, batch_size=64)
TEACHER_WRONG_SHARE = 0.05
"""Of its lessons drop every carry: a teacher that is better than the student and not perfect."""
# As in the toy task, the student can carry but would rather not: what distillation has to change is a preference. One that
# merely stopped early learns little in some dozens of updates, one that never saw a carry nothing.
STUDENT_RECIPE = Recipe(
    num_layers=3, hidden_size=64, num_steps=600, num_habit_steps=60, batch_size=64, habit_learning_rate=5e-4
)


class Lesson(NamedTuple):
    """A prompt and its answer as `teach` reads them."""

    ids: list[int]
    prompt_ids: list[int]
    mask: list[int]


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    """The toy task's own."""
    return build_tokenizer()


def prompts(problems: Sequence[Chain]) -> torch.Tensor:
    """[P, prompt_len] int64, through the chat template; all of one length."""
    conversations = [[{"role": "user", "content": problem.question}] for problem in problems]
    return torch.tensor(tokenizer().apply_chat_template(conversations, add_generation_prompt=True, return_dict=False))


def lessons(problems: Sequence[Chain], word_weights: Sequence[float], *, seed: int, wrong_share: float) -> list[Lesson]:
    """A worked answer to each problem; a share of them, drawn, drops every carry."""
    rng = random.Random(seed)
    texts = [
        problem.worked(rng, word_weights, drop_carries=rng.random() < wrong_share) + tokenizer().eos_token
        for problem in problems
    ]
    answers = tokenizer()(texts, add_special_tokens=False)["input_ids"]
    return [
        Lesson(prompt + answer, prompt, [1] * len(answer))
        for prompt, answer in zip(prompts(problems).tolist(), answers, strict=True)
    ]


def path_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.safetensors"


def start_name(seed: int) -> str:
    """Return the name of the student's start, of the seed's own lessons."""
    return f"start-{seed}"


def make(folder: Path, name: str, *, seed: int, device: str) -> None:
    """Teach one model and write it, whole or not at all; one that is there is kept."""
    path = path_of(folder, name)
    if path.exists():
        return
    problems = draw(NUM_LESSONS, heldout=False, seed=seed)
    if name == TEACHER:
        recipe, model = TEACHER_RECIPE, build_model(TEACHER_RECIPE, tokenizer(), seed=seed)
        right, wrong = lessons(problems, TEACHER_WORD_WEIGHTS, seed=seed, wrong_share=TEACHER_WRONG_SHARE), []
    else:
        recipe, model = STUDENT_RECIPE, build_model(STUDENT_RECIPE, tokenizer(), seed=seed)
        right, wrong = (lessons(problems, STUDENT_WORD_WEIGHTS, seed=seed, wrong_share=share) for share in (0.0, 1.0))
    model.to(device)
    teach(model, right, wrong, recipe, pad=tokenizer().pad_token_id, seed=seed, on_step=lambda step, loss: None)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, temporary)
    temporary.replace(path)


def load(folder: Path, name: str, device: torch.device) -> Qwen3ForCausalLM:
    """A model of `make`, in fp32."""
    state = load_file(path_of(folder, name))
    is_student = len(state["model.norm.weight"]) == STUDENT_RECIPE.hidden_size
    model = build_model(STUDENT_RECIPE if is_student else TEACHER_RECIPE, tokenizer(), seed=0)
    model.load_state_dict(state)
    return model.to(device).eval()
