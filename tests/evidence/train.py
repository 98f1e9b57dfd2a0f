"""One run: a student start trained by one cell, with the project's own batch, choice of tokens, weights and divergence."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tests.evidence import models
from tests.evidence.cells import LEARNT_ON_THE_TEACHERS, RAW, Cell, StageKind
from tests.evidence.chains import MAX_RESPONSE_TOKENS, draw
from tests.evidence.generate import generate, right_answers
from tests.evidence.grpo import policy_loss_sum
from tests.evidence.measure import measure, row_seeds
from tests.evidence.problems import orders, problem_weights
from tests.evidence.settings import Settings
from torch import Tensor
from transformers import Qwen3ForCausalLM

from opd.batch import LossPositions, OpdBatch, RolloutRows, loss_positions, padded_row_starts
from opd.importance import choose_tokens
from opd.importance.counter import step_seed
from opd.losses import DivergenceOutput, chunked_divergence, token_weights


class Run:
    """A learner, its teacher and the optimizer, and what was counted so far."""

    def __init__(
        self,
        cell: Cell,
        settings: Settings,
        *,
        seed: int,
        folder: Path,
        device: torch.device,
        start: dict[str, Any],
        learner: str,
        teacher: str | None,
    ):
        """learner, teacher: names of models. start: `pass_rates` and `response_length` of the learner."""
        self.cell, self.settings, self.seed = cell, settings, seed
        self.teacher = None if teacher is None else models.load(folder, teacher, device).requires_grad_(False)
        self.student = models.load(folder, learner, device)
        self.problems = draw(settings.num_problems, heldout=False, seed=seed)
        self.weights = problem_weights(cell, start["pass_rates"], seed=seed)
        self.max_tokens = MAX_RESPONSE_TOKENS
        if cell.generated_share < 1.0:
            self.max_tokens = round(cell.generated_share * start["response_length"])
        self.num_first, self.num_updates = (
            len(stages) * settings.num_updates // 2 for stages in (cell.stages, cell.all_stages)
        )
        num_then = self.num_updates - self.num_first
        self.order = orders(cell, settings, self.weights, num_first=self.num_first, num_then=num_then, seed=seed)
        self.num_trained = self.num_generated = self.num_by_teacher = 0
        self._begin(cell.stages)

    def _begin(self, stages: Sequence[StageKind]) -> None:
        """A new optimizer for these stages, and what GRPO must not leave too far behind."""
        grpo = "grpo" in stages
        self.reference = copy.deepcopy(self.student).requires_grad_(False) if grpo else None
        self.optimizer = torch.optim.AdamW(
            self.student.parameters(),
            lr=self.settings.grpo_learning_rate if grpo else self.settings.learning_rate,
            betas=self.settings.adam_betas,
            weight_decay=0.0,
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / self.settings.num_warmup_steps)
        )

    def update(self, step: int) -> None:
        """Answers to the step's problems, one optimizer update on them."""
        if step == self.num_first:
            self._begin(self.cell.then)
        kind = self.cell.all_stages[2 * step // self.settings.num_updates]
        num_asked = self.settings.batch_size // self.settings.num_answers
        asked = [
            index for index in self.order[step * num_asked :][:num_asked] for _ in range(self.settings.num_answers)
        ]
        rows = self._rows(asked, kind, step)
        if kind == "grpo":
            right = right_answers(rows, [self.problems[index] for index in asked])
            loss, num_trained = self._policy_loss(rows, right, asked)
        else:
            loss, num_trained = self._loss(rows, self.weights[asked].float().to(self.student.device), kind, step)
        self.num_trained += num_trained
        if not num_trained:
            return
        self.optimizer.zero_grad()
        (loss / num_trained).backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), self.settings.grad_clip)
        self.optimizer.step()
        self.schedule.step()

    def _rows(self, asked: Sequence[int], kind: StageKind, step: int) -> RolloutRows:
        """An answer to each problem: the teacher's or the student's, or without a teacher to imitate a right one."""
        problems = [self.problems[index] for index in asked]
        by_teacher, seed = kind in LEARNT_ON_THE_TEACHERS, step_seed(self.seed, step)
        if by_teacher and self.teacher is None:
            return models.worked_rows(problems, seed=seed).to(self.student.device)
        rows = generate(
            self.teacher if by_teacher else self.student,
            models.prompts(problems),
            row_seeds(seed, len(asked)),
            max_tokens=self.max_tokens,
        ).rows
        num = int(rows.response_lens.sum())
        self.num_generated += num
        self.num_by_teacher += num * by_teacher
        return rows

    def _loss(self, rows: RolloutRows, row_weights: Tensor, kind: StageKind, step: int) -> tuple[Tensor, int]:
        """The loss's sum over the kept tokens, and their number."""
        ids, at = _padded(rows)
        student_states = _states(self.student, ids)[at.flat_index]
        if kind == "sft" or self.teacher is None:
            log_probs = _log_probs(self.student, student_states, at)
            return log_probs.sum() * (-1.0 if kind == "sft" else 1.0), len(at.token_ids)
        with torch.no_grad():
            teacher_states = _states(self.teacher, ids)[at.flat_index]

        def divergence_of(kept: Tensor) -> DivergenceOutput:
            return chunked_divergence(
                student_states[kept],
                self.student.lm_head.weight,
                teacher_states[kept],
                self.teacher.lm_head.weight,
                kind,
                token_weights=token_weights(at.mask[kept], row_index=at.row[kept], row_weights=row_weights),
                beta=0.5,
                temperature=1.0,
                chunk_size=self.settings.chunk_size,
                valid_vocab=len(models.tokenizer()),
            )

        kept = self._kept(at, divergence_of, step)
        return divergence_of(kept).loss_sum, int(kept.sum())

    def log_probs(self, rows: RolloutRows, model: Qwen3ForCausalLM | None = None) -> Tensor:
        """[num_response_tokens] by the student or another model."""
        model = model or self.student
        ids, at = _padded(rows)
        return _log_probs(model, _states(model, ids)[at.flat_index], at)

    def _policy_loss(self, rows: RolloutRows, right: NDArray[np.bool_], problems: Sequence[int]) -> tuple[Tensor, int]:
        """GRPO's loss, summed over the tokens of the answers to these problems, and their number."""
        with torch.no_grad():
            reference = self.log_probs(rows, self.reference)
        log_probs = self.log_probs(rows)
        return policy_loss_sum(log_probs, reference, rows.response_lens, right, problems, self.settings), len(log_probs)

    def _kept(self, at: LossPositions, divergence_of: Callable[[Tensor], DivergenceOutput], step: int) -> Tensor:
        """[T] bool, chosen among all tokens of the update."""
        tokens = self.cell.tokens
        scores: dict[str, Tensor] = {}
        if tokens.needs_student:
            with torch.no_grad():
                scored = divergence_of(at.mask)
            scores = {"entropy": scored.student_entropy, "divergence": scored.scored_divergence}
        return choose_tokens(tokens, at.row, seed=step_seed(self.seed, step), **scores)


def _padded(rows: RolloutRows) -> tuple[Tensor, LossPositions]:
    """Token ids [B, L] int64, padded on the right, and where the trained tokens are predicted."""
    # generate() made them in inference mode, whose tensors autograd refuses.
    rows = RolloutRows(**{name: value.clone() for name, value in vars(rows).items() if value is not None})
    width = int(rows.lens.max())
    ids = OpdBatch(rows=rows).padded(max_length=width, pad_token_id=models.tokenizer().pad_token_id)
    starts = padded_row_starts(rows.num_rows, width, device=rows.input_ids.device)
    return ids["student_input_ids"], loss_positions(rows, row_starts=starts).trained()


def _states(model: Qwen3ForCausalLM, ids: Tensor) -> Tensor:
    """[B * L, d] final hidden states; padding on the right is hidden by causal attention."""
    return model.model(input_ids=ids).last_hidden_state.flatten(0, 1)


def _log_probs(model: Qwen3ForCausalLM, states: Tensor, at: LossPositions) -> Tensor:
    """[T] of the tokens that these states predict."""
    logits = (states @ model.lm_head.weight.T)[:, : len(models.tokenizer())]
    return torch.log_softmax(logits, dim=-1).gather(1, at.token_ids[:, None]).squeeze(1)


def run_cell(
    cell: Cell, settings: Settings, *, seed: int, folder: Path, device: torch.device, product: str, **models_of: Any
) -> dict[str, Any]:
    """Train and measure; the counts and measurements of a result. A teacher that was trained is kept as `product`."""
    began = time.perf_counter()
    run = Run(cell, settings, seed=seed, folder=folder, device=device, **models_of)
    for step in range(run.num_updates):
        run.update(step)
    if cell.learner == RAW:
        models.save(run.student, folder, product)
    after = measure(run.student, settings, seed=seed)
    return {
        "updates": run.num_updates,
        "trained_tokens": run.num_trained,
        "generated_tokens": run.num_generated,
        "generated_by_teacher": run.num_by_teacher,
        "after": after,
        "seconds": time.perf_counter() - began,
        "device": str(device),
    }
