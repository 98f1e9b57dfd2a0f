"""Weights of the training prompts by the pass rates of a file, or by pass rates of the present student that the run measures."""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from opd.cluster.shutdown import GracefulStop
from opd.errors import CheckpointError
from opd.evaluation.pass_rates import PassRate, by_prompt, read_pass_rates, weights_bytes, weights_key, write_pass_rates
from opd.evaluation.results import is_right
from opd.experiment import OpdAgentSpec, OpdSpec
from opd.experiment.algorithm import ProblemImportance
from opd.experiment.errors import Problem, SpecError
from opd.inputs.fetch import local_file
from opd.rollout.batches import Batch
from opd.rollout.manager import RolloutManager
from opd.rollout.seeds import PASS_RATES
from opd.runs.run import Run
from opd.trainer.dataset import PromptDataset
from opd.weights.problems import weights_of_problems
from opd.weights.stages import Schedule

logger = logging.getLogger(__name__)

CHECKPOINT_FILE = "pass_rates.parquet"
MAX_FAILED_SHARE = 0.05
"""Above it measured pass rates tell of lost servers and broken scorers, not of the student."""
_NUM_SHOWN = 5


class ProblemWeights:
    """The weights of a run's training prompts, with a mean of 1 over all of them.

    With `problems.drop` the rows of weight 0 leave the data set; the others keep their weights, whose mean is then above 1.

    Args:
        run: keeps the weights for its report. None means that nothing keeps them.

    Raises:
        SpecError: the file of pass rates cannot be read, lacks prompts, or gives none a weight.
        FetchError, StoreError: a file in a store cannot be fetched.
    """

    def __init__(self, dataset: PromptDataset, problems: ProblemImportance, run: Run | None = None) -> None:
        self._problems, self._ids, self._run = problems, dataset.prompt_ids(), run
        key, path = "opd.importance.problems.pass_rates", str(problems.pass_rates)
        local = local_file(key, path)
        try:
            self._use(read_pass_rates(local))
        except ValueError as error:
            fix = "measure the prompts of data.train by a run of kind passrate, with this run's data.max_prompt_length"
            raise SpecError([Problem(path=key, value=path, rule=str(error), fix=fix)]) from error
        self._places = torch.arange(len(self._ids))  # of the data set's rows among all of them
        if problems.drop:
            self._places = self._weights.nonzero().flatten()
            dataset.keep(self._places.tolist())
        self._keep(step=1)

    @classmethod
    def of(cls, dataset: PromptDataset, problems: ProblemImportance, run: Run | None) -> "ProblemWeights | None":
        """Return the weights of a run. None means that all prompts count alike."""
        return None if problems.weights == "none" else cls(dataset, problems, run)

    def _use(self, rates: Mapping[str, PassRate]) -> None:
        """Weigh by these pass rates; raise ValueError, and change nothing, if they lack prompts or give none a weight."""
        of_rows = _of_rows(rates, self._ids)
        shares = torch.tensor([rate.pass_rate for rate in of_rows], dtype=torch.float64)
        self._weights = weights_of_problems(shares, self._problems, num_samples=min(rate.k for rate in of_rows))
        self._rates = of_rows

    def use_measured(self, rates: Mapping[str, PassRate], failed_share: float, *, step: int) -> bool:
        """Weigh by measured rates from a step on, and return True, or keep the present weights with a warning.

        Args:
            failed_share: share of the answers that never came or could not be scored: as wrong answers they would take a
                prompt's weight.
        """
        try:
            if failed_share > MAX_FAILED_SHARE:
                raise ValueError(f"{failed_share:.0%} of the answers failed, above {MAX_FAILED_SHARE:.0%}")
            self._use(rates)
        except ValueError as error:
            logger.warning("the prompts keep the weights that they had: %s", error)
            return False
        finally:
            self._keep(step=step)
        return True

    def of_rows(self, rows: Sequence[int]) -> Tensor:
        """Return [R] float32, the weights of rows of the data set, as it counts them now."""
        return self._weights[self._places[list(rows)]].float()

    def are_due(self, step: int, schedule: Schedule) -> bool:
        """Return True if the pass rates are measured again before a step; the rates of the first step are the file's."""
        when = self._problems.recompute
        by_number = when.every is not None and step > 1 and (step - 1) % when.every == 0
        return by_number or (when.at_stages and schedule.begins_stage(step))

    def _keep(self, *, step: int) -> None:
        """Print the weights that count from a step on, and keep them for the run's report."""
        print(
            f"opd.importance.problems: weights {self._problems.weights}, {len(self._places)} of {len(self._ids)} training "
            f"prompts kept, the largest weighs {self._weights.max():.3g}",
            flush=True,
        )
        if self._run is not None:
            self._run.keep({weights_key(step): weights_bytes(self._rates, self._weights.tolist())})

    def save(self, folder: Path) -> None:
        """Save with a step's checkpoint the rates that no later start could read from the file of the spec."""
        if self._problems.recompute.is_asked_for:
            # A prompt in several rows once: read again, its rate is the same to the bit.
            write_pass_rates(folder / CHECKPOINT_FILE, {rate.prompt_id: rate for rate in self._rates}.values())

    def load(self, folder: Path) -> None:
        """Continue with what `save` saved; raise CheckpointError if the file is not there, or of other prompts."""
        if self._problems.recompute.is_asked_for:
            try:
                self._use(read_pass_rates(folder / CHECKPOINT_FILE))
            except ValueError as error:
                raise CheckpointError(f"{folder / CHECKPOINT_FILE}: {error}") from error


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
                prompts=prompts, partition=PASS_RATES, step=self._step, num_samples=self._num_samples, is_recorded=True
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


def _of_rows(by_prompt: Mapping[str, PassRate], ids: list[str]) -> list[PassRate]:
    """Return the pass rate of each row, by the ids of the rows."""
    missing = [row for row, name in enumerate(ids, start=1) if name not in by_prompt]
    if missing:
        shown = ", ".join(map(str, missing[:_NUM_SHOWN])) + (", ..." if len(missing) > _NUM_SHOWN else "")
        raise ValueError(
            f"{len(missing)} of {len(ids)} training prompts have no pass rate in it (rows {shown}, counted from 1; it has "
            f"{len(by_prompt)} prompts). A prompt is found by its messages and its ground truth"
        )
    return [by_prompt[name] for name in ids]
