"""Pass rates of the training prompts by the student as it is now, measured inside of its own run."""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from opd.cluster.shutdown import GracefulStop
from opd.errors import StoreError
from opd.evaluation.pass_rates import PassRate, by_prompt
from opd.evaluation.results import is_right
from opd.evaluation.samples import Sample
from opd.experiment import OpdAgentSpec, OpdSpec
from opd.rollout.manager import RolloutManager
from opd.rollout.seeds import PASS_RATES
from opd.rollout.worker import Batch
from opd.runs.run import Run
from opd.store.base import Store
from opd.trainer.dataset import PromptDataset

logger = logging.getLogger(__name__)

UNFINISHED_KEY = "unfinished_pass_rates.json"
"""In the run directory of a distillation that was asked to end while it measured: what it had measured by then."""


class Measuring:
    """Every prompt answered `recompute.num_samples` times before a step, sampled and scored as in training.

    Answers are drawn by seeds of the step, the prompt and the sample: the same weights give the same rates, whether they
    are measured at once or in two attempts. What an earlier one has saved is taken over where this attempt has loaded the
    very checkpoint that went with it.

    Args:
        step: the step that follows.
        run: where a measuring that is not finished is saved; None: nowhere.
    """

    def __init__(
        self, spec: OpdSpec | OpdAgentSpec, dataset: PromptDataset, *, step: int, run: Run | None = None
    ) -> None:
        self._dataset, self._step, self._run = dataset, step, run
        self._num_samples = spec.opd.importance.problems.recompute.num_samples
        self._batch_size = spec.data.train_batch_size
        self._counts: dict[int, _Counts] = {}
        if run is not None and (of_weights := _weights(run, step)) is not None:
            self._counts = max((_read(store, of_weights) for store in run.stores), key=len)
        if self._counts:
            print(f"pass rates of {len(self._counts)} of {len(dataset)} prompts are of an earlier attempt", flush=True)

    def measure(self, manager: RolloutManager, stop: GracefulStop) -> Iterator[None]:
        """Ask what is not answered yet; yield after each batch, and go on with the next.

        Args:
            stop: cuts a batch once the run is asked to end.

        Raises:
            RuntimeError: not a single answer of a batch came.
        """
        left = [row for row in range(len(self._dataset)) if row not in self._counts]
        # In even parts: a last batch of a single prompt that cannot be answered would end the run.
        for part in np.array_split(left, max(math.ceil(len(left) / self._batch_size), 1)):
            rows = [int(row) for row in part]
            if rows:
                report = manager.generate(self._batch(rows), stop)
                report.check()
                self._count(rows, report.samples, is_cut=report.num_cut > 0)
                yield

    def rates(self, checkpoint: str) -> dict[str, PassRate]:
        """The pass rates by the prompts' ids; an answer that never came, or whose scorer failed, is wrong.

        Args:
            checkpoint: what the file of pass rates calls the model.
        """
        k = self._num_samples
        return by_prompt(
            PassRate(prompt_id=name, pass_rate=self._counts[row].right / k, k=k, checkpoint=checkpoint)
            for row, name in enumerate(self._dataset.prompt_ids())
        )

    @property
    def failed_share(self) -> float:
        """Of the answers: those that never came, or whose scorer failed."""
        return sum(counts.failed for counts in self._counts.values()) / (len(self._dataset) * self._num_samples)

    def save(self) -> None:
        """Keep what has been measured, for whoever resumes from the checkpoint of these weights; without one, nothing."""
        if self._run is None or (of_weights := _weights(self._run, self._step)) is None:
            return
        content = json.dumps({"weights": of_weights, "prompts": self._counts})
        self._run.keep({UNFINISHED_KEY: content.encode()})

    def _batch(self, rows: Sequence[int]) -> Batch:
        return Batch(
            prompts=[self._dataset[row] | {"uid": str(row)} for row in rows],
            partition=PASS_RATES,
            step=self._step,
            num_samples=self._num_samples,
            is_recorded=True,
        )

    def _count(self, rows: Sequence[int], samples: Sequence[Sample], *, is_cut: bool) -> None:
        """Count the answers to each prompt; of a cut batch, only to those prompts that have all of theirs."""
        right = Counter(sample.problem_index for sample in samples if is_right(sample))
        scored = Counter(sample.problem_index for sample in samples if not sample.failed)
        for row in rows:
            failed = self._num_samples - scored[row]
            if not (is_cut and failed):
                self._counts[row] = _Counts(right[row], failed)


class _Counts(NamedTuple):
    """Of one prompt's answers."""

    right: int
    failed: int


def _weights(run: Run, step: int) -> str | None:
    """The seal of the checkpoint that a step begins with, by which it differs from any other save; None if it is not saved."""
    current = run.checkpoints.current
    return current.seal().decode() if current is not None and current.step == step - 1 else None


def _read(store: Store, of_weights: str) -> dict[int, _Counts]:
    """What a place of the run holds of a measuring with these weights; nothing where it cannot be read."""
    try:
        if not store.exists(UNFINISHED_KEY):
            return {}
        found = json.loads(store.get(UNFINISHED_KEY))
        if found["weights"] != of_weights:
            return {}
        return {int(row): _Counts(*counts) for row, counts in found["prompts"].items()}
    except (StoreError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s of %s cannot be read, so its prompts are asked again: %s", UNFINISHED_KEY, store, error)
        return {}
