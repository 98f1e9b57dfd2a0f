"""Rows that a distillation carries from step to step: the schedule's, with their prompts, in the run's checkpoints."""

from collections.abc import Callable, Sequence
from typing import Any

from opd.agent.settings import LOOP_COLUMN, SINGLE_TURN
from opd.experiment import OpdAgentSpec, OpdSpec
from opd.experiment.errors import Problem, SpecError
from opd.rollout.batches import Batch, Prompt
from opd.rollout.carry import Carry, Growth, Slot, Update
from opd.rollout.manager import RolloutManager
from opd.rollout.seeds import TRAIN
from opd.trainer.dataset import PromptDataset


class CarriedRows:
    """Fills the updates of a run with `rollout.schedule: carry`.

    Args:
        dataset: the training prompts.

    Raises:
        SpecError: the data have fewer answers than are generated at once, or ask for another agent loop.
    """

    def __init__(self, spec: OpdSpec | OpdAgentSpec, dataset: PromptDataset) -> None:
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
        rows = spec.data.train_batch_size * rollout.num_samples
        self.carry = Carry(rows=rows, in_flight=in_flight, max_age=max_age, longest=self._limit)
        self.save, self.load = self.carry.save, self.carry.load
        self._update = Update()

    def batch(self, step: int, draw: Callable[[], Sequence[Prompt]], manager: RolloutManager) -> Batch:
        """Generate until the update of a step is full; return its prompts, each with the one answer that is trained on.

        Args:
            draw: returns the next prompts of the data.
        """

        def places() -> list[tuple[int, int, int]]:
            return [(int(row["index"]), sample, self._limit) for row in draw() for sample in range(self._num_samples)]

        def advance(slots: Sequence[Slot], num_tokens: int) -> list[list[Growth]]:
            begun = [[({} if row.prompt_ids else self._prompt(row.index), row) for row in slot] for slot in slots]
            return manager.advance(begun, num_tokens)

        self._update = self.carry.next_update(version=step - 1, draw=places, advance=advance)
        rows = self._update.rows
        return Batch(
            prompts=[self._prompt(row.index) | {"uid": f"{step}/{place}"} for place, row in enumerate(rows)],
            partition=TRAIN,
            step=step,
            num_samples=1,
            given=[{row.sample: row.tokens} for row in rows],
            prompt_ids=[{row.sample: row.prompt_ids} for row in rows],
        )

    def _prompt(self, index: int) -> dict[str, Any]:
        """Return a row of the data set; its column of agent loops names none but the one that is used."""
        return {name: value for name, value in self._dataset[index].items() if name != LOOP_COLUMN}

    def metrics(self, step: int) -> dict[str, float]:
        """Return the step's `Update.metrics`, and the rows that ended while the update was filled, the warm fill's with them."""
        ended = {
            "rollout/trajectories": float(self._update.num_ended),
            "rollout/failed": float(self._update.num_failed),
        }
        return self._update.metrics(step - 1) | ended
