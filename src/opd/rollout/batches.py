"""Prompts as they are asked for, and the report of their answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import Tensor

from opd.agent.metrics import AgentCounts
from opd.agent.trajectories import Trajectory
from opd.evaluation.samples import Sample
from opd.rollout.carry import CarriedRow
from opd.rollout.rows import Row

Prompt = dict[str, Any]
"""A row of the data set, with `uid`, a name that no other prompt of its step has."""
TEACHER = "opd_teacher"
"""Key of a training prompt's teacher, by number, where there are several."""
Begun = tuple[Prompt, CarriedRow]
"""(the prompt, unless its tokens are known; what there is of its answer)."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Prompts, and what is asked of them.

    Attributes:
        partition: `TRAIN` or `VALIDATION`, by which seeds and sampling differ.
        num_samples: answers to each prompt.
        given: token ids of a prompt's answers by the sample's number, in the place of sampled ones; empty: all are sampled.
        prompt_ids: tokens that each given answer followed; a template that writes the date writes others now.
        has_events: whether the given answers bring their teacher's events, so that no server reads them.
        max_tokens: of an answer, of those that `data.max_response_length` allows.
        is_recorded: whether the report holds the answers as an evaluation's samples in the place of rows.
    """

    prompts: Sequence[Prompt]
    partition: str
    step: int
    num_samples: int
    given: Sequence[Mapping[int, list[int]]] = ()
    prompt_ids: Sequence[Mapping[int, list[int]]] = ()
    has_events: bool = False
    max_tokens: int | None = None
    is_recorded: bool = False

    def split(self, num_parts: int) -> list[Self]:
        """Return at most so many parts, in order."""
        size = -(-len(self.prompts) // num_parts)
        cuts = [slice(start, start + size) for start in range(0, len(self.prompts), size)]
        return [
            replace(self, prompts=self.prompts[cut], given=self.given[cut], prompt_ids=self.prompt_ids[cut])
            for cut in cuts
        ]


@dataclass(kw_only=True)
class RolloutReport:
    """Outcome of a batch."""

    rows: list[Row] = field(default_factory=list)
    """Rows of the answers that came, in the order of the data. A recorded batch has none."""
    samples: list[Sample] = field(default_factory=list)
    """Answers of a recorded batch; `problem_index` is the row of the data set."""
    events: list[tuple[int, int, dict[str, Tensor]]] = field(default_factory=list)
    """(row of the data set, sample, columns) of each recorded answer of a served teacher."""
    num_trajectories: int = 0
    num_failed: int = 0
    num_reward_failed: int = 0
    num_unread: int = 0
    """Training answers in which the scorer found no answer."""
    num_cut: int = 0
    """Given up unanswered, because the run is asked to end."""
    first_error: str = ""
    seconds: float = 0.0
    fault: Exception | None = None
    """Error that ends the run although these answers were given."""
    agent: AgentCounts = field(default_factory=AgentCounts)
    """Conversations with tools."""
    trajectories: list[Trajectory] = field(default_factory=list)
    """Conversations of the lowest data rows, as many as the run keeps."""

    def add(self, other: Self) -> None:
        """Take in another batch's."""
        for name, value in vars(self).items():
            if isinstance(value, list):
                value.extend(getattr(other, name))
            elif name.startswith("num_"):
                setattr(self, name, value + getattr(other, name))
        self.first_error, self.fault = self.first_error or other.first_error, self.fault or other.fault
        self.agent.add(other.agent)
        self.seconds = max(self.seconds, other.seconds)

    def check(self) -> None:
        """Refuse a batch that cannot be used.

        Raises:
            RuntimeError: not a single answer came.
            Exception: a server or a rollout worker was lost.
        """
        if self.fault is not None:
            raise self.fault
        if self.num_failed == self.num_trajectories:
            raise RuntimeError(f"all {self.num_trajectories} trajectories failed; the first: {self.first_error}")
