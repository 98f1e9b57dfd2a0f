"""Metrics of a step's rows and of a validation's, as the driver makes them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from verl import DataProto
from verl.trainer.ppo import metric_utils

from opd.batch.builder import rows_from_batch
from opd.batch.rows import tool_mask_metrics
from opd.rollout.rows import Row, columns_of


def progress(step: int, epoch: int, timing: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that every step has."""
    return {
        "training/global_step": step,
        "training/epoch": epoch,
        **{f"timing_s/{name}": seconds for name, seconds in timing.items()},
    }


def pace(rows: Sequence[Row], step_s: float, *, num_ranks: int) -> dict[str, float]:
    """Return the tokens of the rows, prompts included, and their number a second and rank."""
    num_tokens = sum(row.num_tokens for row in rows)
    return {"perf/total_num_tokens": float(num_tokens), "perf/throughput": num_tokens / max(step_s, 1e-9) / num_ranks}


def answer_lengths(rows: Sequence[Row]) -> dict[str, float]:
    """Return mean and maximum tokens of an answer."""
    lengths = np.array([len(row.response) for row in rows])
    return {"response_length/mean": float(lengths.mean()), "response_length/max": float(lengths.max())}


def distilled_rows(rows: Sequence[Row], *, max_response_length: int) -> dict[str, float]:
    """Return the metrics of rows that a distillation trains on.

    Args:
        max_response_length: tokens of a response that has been cut.
    """
    scored = [row for row in rows if row.is_scored]
    scores, right = (np.array([getattr(row, name) for row in scored]) for name in ("score", "is_right"))
    of_scores = (
        {"opd/n_correct": right.sum(), "opd/accuracy": right.mean(), "opd/score_mean": scores.mean()} if scored else {}
    )
    lengths, turns = (np.array(of) for of in ([len(r.response) for r in rows], [r.num_turns for r in rows]))
    return {
        "opd/valid_rows": float(len(rows)),
        **{name: float(value) for name, value in of_scores.items()},
        **answer_lengths(rows),
        "response_length/clip_ratio": float((lengths >= max_response_length).mean()),
        **{f"opd/num_turns/{name}": float(getattr(turns, name)()) for name in ("min", "max", "mean")},
        **tool_mask_metrics(rows_from_batch(columns_of(rows))),
    }


def policy_rows(rows: Sequence[Row], *, timing: Mapping[str, float], num_ranks: int) -> dict[str, Any]:
    """Return verl's metrics of rows with advantages, under its names.

    Args:
        timing: seconds of the step's parts.
    """
    vectors = ("prompts", "responses", "response_mask", "rm_scores", "advantages", "returns")
    padded = {name: pad_sequence([row.columns[name] for row in rows], batch_first=True) for name in vectors}
    padded["token_level_scores"] = padded["token_level_rewards"] = padded.pop("rm_scores")
    padded["prompt_length"] = torch.tensor([float(len(row.prompt)) for row in rows])
    padded["response_length"] = torch.tensor([float(len(row.response)) for row in rows])
    batch = DataProto(
        batch=TensorDict(padded, batch_size=len(rows)),
        non_tensor_batch={"__num_turns__": np.array([row.num_turns for row in rows], dtype=np.int32)},
        meta_info={"global_token_num": [row.num_tokens for row in rows]},
    )
    metrics: dict[str, Any] = metric_utils.compute_data_metrics(batch=batch, use_critic=False)
    metrics |= metric_utils.compute_timing_metrics(batch=batch, timing_raw=dict(timing))
    metrics |= metric_utils.compute_throughout_metrics(batch=batch, timing_raw=dict(timing), n_gpus=num_ranks)
    return metrics


def validation(rows: Sequence[Row], prompts: Sequence[Mapping[str, Any]], *, num_samples: int) -> dict[str, Any]:
    """Return verl's metrics of a validation, under its names; an answer that failed counts as wrong where answers have an `acc`.

    Args:
        rows: of the answers that came.
        prompts: all that were asked, with `uid` and `data_source`.
    """
    infos: dict[str, list[Any]] = {"reward": [row.score for row in rows]}
    for name in dict.fromkeys(name for row in rows for name in row.info):
        infos[name] = [row.info.get(name) for row in rows]
    found = metric_utils.process_validation_metrics(
        [row.data_source for row in rows],
        [row.uid for row in rows],
        infos,
        expected_acc_counts={(str(p.get("data_source", "unknown")), p["uid"]): num_samples for p in prompts},
    )
    metrics: dict[str, Any] = {}
    for source, of_source in found.items():
        core = "acc" if "acc" in of_source else "reward"
        for name, values in of_source.items():
            most = max(int(key.split("@")[-1].split("/")[0]) for key in values)
            for key, value in values.items():
                is_core = name == core and key.startswith(("mean", "maj", "best")) and f"@{most}" in key
                metrics[f"{'val-core' if is_core else 'val-aux'}/{source}/{name}/{key}"] = value
    turns = np.array([row.num_turns for row in rows])
    return metrics | {f"val-aux/num_turns/{end}": getattr(turns, end)() for end in ("min", "max", "mean") if len(turns)}
