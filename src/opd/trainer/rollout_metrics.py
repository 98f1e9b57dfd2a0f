"""What a step's rows say in numbers: how many were right, how long they are, how many turns they took."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensordict import TensorDict

from opd.batch import rows_from_batch, tool_mask_counts, tool_mask_metrics

READS = ("prompts", "responses", "response_mask", "rm_scores", "num_turns", "extra_fields")
"""The fields of the rows that `rollout_metrics` reads."""


def rollout_metrics(data: TensorDict, *, max_response_length: int) -> dict[str, float]:
    """Metrics of rows with the fields `READS`.

    Args:
        max_response_length: tokens of a response that has been cut.
    """
    scores = np.array([float(s.sum()) for s in data["rm_scores"].unbind()])
    extras = list(data["extra_fields"])
    correct = np.array([_is_correct(extra, score) for extra, score in zip(extras, scores, strict=True)])
    lengths = np.array([len(mask) for mask in data["response_mask"].unbind()])
    turns = np.array([int(t) for t in data["num_turns"]])
    return {
        "opd/n_correct": float(correct.sum()),
        "opd/accuracy": float(correct.mean()),
        "opd/score_mean": float(scores.mean()),
        "response_length/mean": float(lengths.mean()),
        "response_length/max": float(lengths.max()),
        "response_length/clip_ratio": float((lengths >= max_response_length).mean()),
        **{f"opd/num_turns/{name}": float(getattr(turns, name)()) for name in ("min", "max", "mean")},
        **tool_mask_metrics(tool_mask_counts(rows_from_batch(data))),
    }


def _is_correct(extra_fields: dict[str, Any], score: float) -> bool:
    """The scorer's own verdict where it gave one; a score above 0 otherwise (math_dapo scores -1/+1)."""
    info = extra_fields.get("reward_extra_info", {})
    return bool(float(info["acc"]) > 0) if "acc" in info else score > 0
