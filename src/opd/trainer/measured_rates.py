"""Pass rates of the training prompts by the present student, measured within its own run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from opd.cluster.shutdown import GracefulStop
from opd.evaluation.pass_rates import PassRate, by_prompt
from opd.evaluation.results import is_right
from opd.experiment import OpdAgentSpec, OpdSpec
from opd.rollout.batches import Batch
from opd.rollout.manager import RolloutManager
from opd.rollout.seeds import PASS_RATES
from opd.trainer.dataset import PromptDataset


class Measuring:
    """Answers to every prompt, `recompute.num_samples` each, sampled and scored as in training before a step.

    Seeds of step, prompt and sample draw the answers: the same weights give the same rates, in any attempt.
    """

    def __init__(self, spec: OpdSpec | OpdAgentSpec, dataset: PromptDataset, *, step: int) -> None:
        self._dataset, self._step = dataset, step
        self._num_samples = spec.opd.importance.problems.recompute.num_samples
        self._batch_size = spec.data.train_batch_size
        self._right, self._num_scored = Counter[int](), 0

    def measure(self, manager: RolloutManager, stop: GracefulStop) -> Iterator[None]:
        """Ask every prompt; yield after each batch, where the loop ends a run that `stop` has cut.

        Raises:
            RuntimeError: not a single answer of a batch came.
        """
        num = len(self._dataset)
        # In even parts: a last batch of a single prompt that cannot be answered would end the run.
        for part in np.array_split(range(num), max(math.ceil(num / self._batch_size), 1)):
            prompts = [self._dataset[int(row)] | {"uid": str(row)} for row in part]
            batch = Batch(
                prompts=prompts,
                partition=PASS_RATES,
                step=self._step,
                num_samples=self._num_samples,
                is_recorded=True,
            )
            report = manager.generate(batch, stop)
            report.check()
            self._right.update(sample.problem_index for sample in report.samples if is_right(sample))
            self._num_scored += sum(not sample.failed for sample in report.samples)
            yield

    def rates(self, checkpoint: str) -> dict[str, PassRate]:
        """Return the pass rates by the prompts' ids; an answer that never came, or whose scorer failed, is wrong.

        Args:
            checkpoint: name of the model in the file of pass rates.
        """
        k = self._num_samples
        return by_prompt(
            PassRate(prompt_id=name, pass_rate=self._right[row] / k, k=k, checkpoint=checkpoint)
            for row, name in enumerate(self._dataset.prompt_ids())
        )

    @property
    def failed_share(self) -> float:
        """Return the share of the answers that never came, or whose scorer failed."""
        return 1.0 - self._num_scored / (len(self._dataset) * self._num_samples)
