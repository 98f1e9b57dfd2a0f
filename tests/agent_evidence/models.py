"""The shapes of the tiny teacher and student, and how they are taught from right conversations."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tests.agent_evidence.tokenizer import MODEL_MAX_LENGTH
from tests.toy_models.models import build_tiny_qwen3
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from opd.agent.dialogue import Dialogue


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One tiny model: its shape and its lessons."""

    num_layers: int
    hidden_size: int
    num_steps: int
    """Of right lessons; also the length of the learning rate's cosine."""
    num_habit_steps: int = 0
    """Steps after them that teach the habit to guess."""
    guess_fraction: float = 0.8
    """Share of the lessons in those steps that answer with a guess and never ask a tool."""
    habit_learning_rate: float = 5e-4
    learning_rate: float = 2e-3
    batch_size: int = 48
    num_warmup_steps: int = 30
    adam_betas: tuple[float, float] = (0.9, 0.98)
    grad_clip: float = 1.0


TEACHER_RECIPE = Recipe(num_layers=3, hidden_size=96, num_steps=400)
# A student that merely stopped early samples nonsense, from which a sure teacher teaches nothing (measured: 12 steps took
# it from 0.30 to 0.10). This one can use the tool, but would rather guess: that is what distillation has to change.
STUDENT_RECIPE = Recipe(num_layers=3, hidden_size=64, num_steps=300, num_habit_steps=60)


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, *, seed: int) -> Qwen3ForCausalLM:
    """A freshly initialised fp32 model with as many vocabulary rows as the tokenizer has tokens."""
    return build_tiny_qwen3(
        tokenizer,
        num_layers=recipe.num_layers,
        hidden_size=recipe.hidden_size,
        num_vocab_rows=len(tokenizer),
        max_position_embeddings=MODEL_MAX_LENGTH,
        seed=seed,
    )


def padded(dialogues: Sequence[Dialogue], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [B, T] int64, right-padded, and the mask [B, T] bool of the model's own tokens."""
    width = max(len(dialogue.ids) for dialogue in dialogues)
    ids = torch.full((len(dialogues), width), pad)
    mask = torch.zeros(len(dialogues), width, dtype=torch.bool)
    for row, dialogue in enumerate(dialogues):
        ids[row, : len(dialogue.ids)] = torch.tensor(dialogue.ids)
        start = len(dialogue.prompt_ids)
        mask[row, start : start + len(dialogue.mask)] = torch.tensor(dialogue.mask).bool()
    return ids, mask


def teach(
    model: Qwen3ForCausalLM,
    right: Sequence[Dialogue],
    guessed: Sequence[Dialogue],
    recipe: Recipe,
    *,
    pad: int,
    seed: int,
    on_step: Callable[[int, float], None],
) -> None:
    """Train in place by cross-entropy on the model's own tokens; `on_step(step, loss)` after each step.

    Args:
        right: conversations that look the price up. guessed: ones that do not, for the habit.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=recipe.adam_betas, weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _lr_factor(step, recipe))
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for step in range(1, recipe.num_steps + recipe.num_habit_steps + 1):
        num_guessed = round(recipe.batch_size * recipe.guess_fraction) if step > recipe.num_steps else 0
        batch = _draw(right, recipe.batch_size - num_guessed, generator) + _draw(guessed, num_guessed, generator)
        ids, mask = (side.to(model.device) for side in padded(batch, pad))
        logits = model(input_ids=ids).logits[:, :-1]
        loss = functional.cross_entropy(logits[mask[:, 1:]], ids[:, 1:][mask[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.grad_clip)
        optimizer.step()
        schedule.step()
        on_step(step, loss.item())
    model.eval()


def _draw(dialogues: Sequence[Dialogue], num: int, generator: torch.Generator) -> list[Dialogue]:
    """`num` different ones."""
    return [dialogues[i] for i in torch.randperm(len(dialogues), generator=generator)[:num].tolist()]


def _lr_factor(step: int, recipe: Recipe) -> float:
    """Linear warm-up, half a cosine down to zero at `num_steps`, then the habit's rate (`step` counts from 0)."""
    if step >= recipe.num_steps:
        return recipe.habit_learning_rate / recipe.learning_rate
    warmup = min(1.0, (step + 1) / recipe.num_warmup_steps)
    return warmup * 0.5 * (1.0 + math.cos(math.pi * step / recipe.num_steps))
