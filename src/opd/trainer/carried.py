"""The rows that a distillation carries from step to step: the schedule's, with their prompts, in the run's checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from opd.agent.settings import LOOP_COLUMN, SINGLE_TURN
from opd.config import OpdSpec
from opd.config.errors import Problem, SpecError
from opd.rollout.carry import Carry, Growth, Slot, Update
from opd.rollout.manager import RolloutManager
from opd.rollout.worker import GIVEN, PROMPT_IDS
from opd.trainer import carried_file
from opd.trainer.dataset import PromptDataset


class CarriedRows:
    """Fills the updates of a run with `rollout.schedule: carry`.

    Args:
        dataset: the training prompts.

    Raises:
        SpecError: the data have fewer answers than are to be on their way at once, or ask for another agent loop.
    """

    def __init__(self, spec: OpdSpec, dataset: PromptDataset) -> None:
        rollout, (in_flight, max_age) = spec.rollout, spec.carried
        self._dataset, self._num_samples, self._limit = dataset, rollout.num_samples, spec.data.max_response_length
        if in_flight > (num := len(dataset) * rollout.num_samples):
            rule = f"the training data have {num} answers, and {in_flight} are to be generated at once"
            fix = f"at most {num} (rollout.in_flight), or more prompts"
            raise SpecError([Problem(path="rollout.in_flight", value=rollout.in_flight, rule=rule, fix=fix)])
        others = {str(name) for name in dataset.column(LOOP_COLUMN) or ()} - {SINGLE_TURN}
        if others:
            rule = f"column {LOOP_COLUMN} of the data asks for {sorted(others)}, and rollout.schedule carry answers by {SINGLE_TURN} alone"
            fix = "rollout.schedule: strict, or data without that column"
            raise SpecError([Problem(path="data.train", value=list(spec.data.train), rule=rule, fix=fix)])
        self.rows_per_update = spec.data.train_batch_size * rollout.num_samples
        self._carry = Carry(rows=self.rows_per_update, in_flight=in_flight, max_age=max_age, longest=self._limit)
        self._update = Update()

    def next_batch(self, step: int, draw: Callable[[], TensorDict], manager: RolloutManager) -> TensorDict:
        """Generate until the update of a step is full; its prompts, each with the one answer that is trained on.

        Args:
            draw: the next prompts of the data.
        """

        def places() -> list[tuple[int, int, int]]:
            return [(int(i), sample, self._limit) for i in draw()["index"] for sample in range(self._num_samples)]

        def advance(slots: Sequence[Slot], num_tokens: int) -> list[list[Growth]]:
            begun = [[({} if row.prompt_ids else self._row(row.index), row) for row in slot] for slot in slots]
            return manager.advance(begun, num_tokens)

        self._update = self._carry.next_update(version=step - 1, draw=places, advance=advance)
        rows = self._update.rows
        fields = collate_fn([self._row(row.index) for row in rows])
        fields["uid"] = np.array([str(uuid4()) for _ in rows], dtype=object)
        batch = tu.get_tensordict(fields)
        tu.assign_non_tensor_data(batch, "global_steps", step)
        tu.assign_non_tensor_stack(batch, GIVEN, [{row.sample: row.tokens} for row in rows])
        tu.assign_non_tensor_stack(batch, PROMPT_IDS, [{row.sample: row.prompt_ids} for row in rows])
        return batch

    def _row(self, index: int) -> dict[str, Any]:
        """A row of the data set; its column of agent loops names none but the one that is used."""
        return {name: value for name, value in self._dataset[index].items() if name != LOOP_COLUMN}

    def metrics(self, step: int) -> dict[str, float]:
        """Of the step's update, see `Update.metrics`."""
        return self._update.metrics(step - 1)

    @property
    def num_ended(self) -> int:
        """Rows that ended while the last update was filled, the warm fill's with them."""
        return self._update.num_ended

    @property
    def num_failed(self) -> int:
        """Those of `num_ended` that were given up."""
        return self._update.num_failed

    def save(self, folder: Path) -> None:
        """Save with a step's checkpoint."""
        carried_file.save(self._carry, folder)

    def load(self, folder: Path) -> None:
        """Go on with what `save` saved.

        Raises:
            CheckpointError, OSError: see `carried_file.load`.
        """
        carried_file.load(self._carry, folder)
