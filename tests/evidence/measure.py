"""What a model can do: held-out scores and pass rates, of answers sampled at temperature 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.evidence import models
from tests.evidence.chains import LEVELS, MAX_RESPONSE_TOKENS, Chain, draw
from tests.evidence.generate import Answers, generate, right_answers
from transformers import Qwen3ForCausalLM

from opd.evaluation.estimators import pass_at_every_k
from opd.importance.counter import step_seed

HELDOUT_SEED = 0
"""All are judged on the same problems."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Numbers of problems and answers."""

    num_heldout: int = 200
    num_heldout_answers: int = 8
    num_problems: int = 640
    """Of a seed's training set."""
    num_rate_answers: int = 8
    """K of the pass rates."""


def measure(model: Qwen3ForCausalLM, settings: Measured, *, seed: int) -> dict[str, Any]:
    """Held-out mean@n, pass@k, tokens an answer and nats a token, of answers sampled at temperature 1."""
    problems = draw(settings.num_heldout, heldout=True, seed=HELDOUT_SEED)
    right, answers = _answer(model, problems, settings.num_heldout_answers, seed=step_seed(seed, -1))
    pass_at = np.mean([pass_at_every_k(int(row.sum()), len(row)) for row in right], axis=0)
    levels = np.array([problem.level for problem in problems])
    return {
        "score": float(right.mean()),
        "score_by_level": [float(right[levels == level].mean()) for level in LEVELS],
        "pass_at_k": pass_at.tolist(),
        "response_length": float(answers.rows.response_lens.double().mean()),
        "entropy": float(answers.surprise.double().mean()),
    }


def pass_rates(model: Qwen3ForCausalLM, settings: Measured, *, seed: int) -> list[float]:
    """The start's share of right answers to each problem of the seed's training set."""
    problems = draw(settings.num_problems, heldout=False, seed=seed)
    return _answer(model, problems, settings.num_rate_answers, seed=step_seed(seed, -2))[0].mean(axis=1).tolist()


def _answer(
    model: Qwen3ForCausalLM, problems: list[Chain], num: int, *, seed: int
) -> tuple[NDArray[np.bool_], Answers]:
    """Whether each of [P, num] answers is right, and the answers."""
    repeated = [problem for problem in problems for _ in range(num)]
    answers = generate(model, models.prompts(repeated), row_seeds(seed, len(repeated)), max_tokens=MAX_RESPONSE_TOKENS)
    return right_answers(answers.rows, repeated).reshape(len(problems), num), answers


def row_seeds(seed: int, num: int) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**63, num, dtype=np.uint64)
