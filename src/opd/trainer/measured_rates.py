"""Pass rates of the training prompts by the student as it is now, measured inside of its own run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from uuid import uuid4

import numpy as np
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from opd.config import OpdAgentSpec, OpdSpec
from opd.evaluation.pass_rates import PassRate, by_prompt
from opd.evaluation.results import is_right
from opd.rollout.manager import RolloutManager
from opd.rollout.worker import ONLY_SCORED
from opd.trainer.dataset import PromptDataset
from opd.trainer.problem_weights import ProblemWeights


def weigh_again(
    weights: ProblemWeights,
    dataset: PromptDataset,
    manager: RolloutManager,
    *,
    spec: OpdSpec | OpdAgentSpec,
    run_id: str,
    step: int,
    between: Callable[[], None],
) -> dict[str, float]:
    """Weigh the prompts by what the student can do before a step, as far as it can be told; the metrics of it.

    Args:
        between: as of `measure_pass_rates`.
    """
    measured, failed_share = measure_pass_rates(
        dataset,
        manager,
        step=step,
        num_samples=spec.opd.importance.problems.recompute.num_samples,
        batch_size=spec.data.train_batch_size,
        checkpoint=f"{run_id}/global_step_{step - 1}",
        between=between,
    )
    is_used = weights.use_measured(measured, failed_share)
    weights.keep(step=step)
    return {
        "opd/pass_rate_mean": float(np.mean([rate.pass_rate for rate in measured.values()])),
        "opd/pass_rate_failed_share": failed_share,
        "opd/pass_rates_used": float(is_used),
    }


def measure_pass_rates(
    dataset: PromptDataset,
    manager: RolloutManager,
    *,
    step: int,
    num_samples: int,
    batch_size: int,
    checkpoint: str,
    between: Callable[[], None],
) -> tuple[dict[str, PassRate], float]:
    """Every prompt answered `num_samples` times, sampled and scored as in training.

    An answer that never came, or whose scorer failed, is wrong, as in a run of kind passrate.

    Args:
        step: the step that follows, by which the answers' seeds are drawn: the same weights give the same rates.
        batch_size: prompts that are asked together, at most.
        checkpoint: what the file of pass rates calls the model.
        between: called after each batch; what it raises ends the measuring.

    Returns:
        The pass rates by the prompts' ids; the share of the answers that never came or whose scorer failed.

    Raises:
        RuntimeError: not a single answer of a batch came.
    """
    num_right: Counter[int] = Counter()
    num_failed = 0
    # In even parts: a last batch of a single prompt that cannot be answered would end the run.
    for part in np.array_split(np.arange(len(dataset)), math.ceil(len(dataset) / batch_size)):
        # No loader: making one draws from the global generators, which a run without measuring would not.
        rows = collate_fn([dataset[int(row)] for row in part])
        rows["uid"] = np.array([str(uuid4()) for _ in rows["index"]], dtype=object)
        batch = tu.get_tensordict(rows)
        for name, value in (("global_steps", step), ("__rollout_n__", num_samples), (ONLY_SCORED, True)):
            tu.assign_non_tensor_data(batch, name, value)
        manager.generate_sequences(batch)
        report = manager.take_report()
        num_failed += report.num_failed + report.num_reward_failed
        num_right.update(sample.problem_index for sample in report.samples if is_right(sample))
        between()
    rates = by_prompt(
        PassRate(prompt_id=name, pass_rate=num_right[row] / num_samples, k=num_samples, checkpoint=checkpoint)
        for row, name in enumerate(dataset.prompt_ids())
    )
    return rates, num_failed / (len(dataset) * num_samples)
