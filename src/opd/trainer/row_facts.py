"""Facts of a step's rows besides their tokens: weights, advantages, names, teachers and the teachers' prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from opd.batch import TEACHER_PROMPTS
from opd.config import OpdAgentSpec, OpdSpec
from opd.config.algorithm import Policy
from opd.config.errors import Problem, SpecError
from opd.losses import reward_weights
from opd.trainer.dataset import PromptDataset
from opd.trainer.problem_weights import ProblemWeights
from opd.trainer.teacher_prompts import TeacherPrompts
from opd.trainer.token_log import Order, row_id

_NUM_SHOWN = 5


class TeacherRoute:
    """The number of each prompt's teacher, in the order of their names.

    Raises:
        SpecError: the data lack the column `route.by`, or a prompt's value in it leads to none.
    """

    def __init__(self, dataset: PromptDataset, spec: OpdSpec | OpdAgentSpec) -> None:
        route, names = spec.route, sorted(spec.teachers)
        values = [None] * len(dataset.dataframe) if route.all is not None else dataset.column(route.by)
        if values is None:
            problem = Problem(
                path="route.by",
                value=route.by,
                rule="the files of data.train have no such column",
                fix=f"name one that they have: {', '.join(dataset.dataframe.column_names)}",
            )
            raise SpecError([problem])
        unrouted = Counter(str(value) for value in values if route.of(value) is None)
        if unrouted:
            raise SpecError(
                [
                    Problem(
                        path=f"route.to.{value}",
                        rule=f"{count} of {len(values)} training prompts have {value!r} in the column {route.by}, which leads "
                        "to no teacher",
                        fix=f"add it with one of {', '.join(names)}, or take these prompts out of data.train",
                    )
                    for value, count in unrouted.most_common(_NUM_SHOWN)
                ]
            )
        read_by = [route.of(value) or "" for value in values]
        self._numbers = torch.tensor([names.index(name) for name in read_by], dtype=torch.int64)
        counts = Counter(read_by)
        shares = ", ".join(f"{name} {counts[name]}" for name in spec.routed)
        print(f"route: training prompts by teacher: {shares}", flush=True)

    @classmethod
    def of(cls, dataset: PromptDataset, spec: OpdSpec | OpdAgentSpec) -> TeacherRoute | None:
        """The route of a run with several teachers; None: one teacher reads all."""
        return cls(dataset, spec) if spec.teachers else None

    def of_rows(self, rows: Sequence[int]) -> Tensor:
        """[R] int64, the teachers of rows of the data set, as it counts them now."""
        return self._numbers[list(rows)]


def group_advantages(scores: Tensor, uids: Sequence[str] | np.ndarray, *, by_std: bool) -> Tensor:
    """[R] float32: each row's score less its prompt's mean and, `by_std`, over its prompt's standard deviation.

    Args:
        scores: [R] one scalar a row.
        uids: [R] the prompt each row answers. A row without siblings, those that failed left out, has nothing to be
            compared with: 0, where verl keeps its score.
    """
    rewards = scores.detach().float().clone()[:, None]
    found, _ = get_adv_estimator_fn("grpo")(
        token_level_rewards=rewards,
        response_mask=torch.ones_like(rewards),
        index=np.asarray(uids, dtype=object),
        norm_adv_by_std_in_grpo=by_std,
    )
    _, numbers, sizes = np.unique(np.asarray(uids, dtype=str), return_inverse=True, return_counts=True)
    advantages: Tensor = found[:, 0].masked_fill(torch.from_numpy(sizes[numbers] == 1), 0.0)
    return advantages


@dataclass(frozen=True, kw_only=True)
class RowFacts:
    """Makes them.

    Args:
        reward_beta: of the weights by reward; None: all answers count alike.
        policy: the policy gradient's settings; None: the run has none.
        weights: of the prompts; None: all count alike.
        route: to one of several teachers; None: one reads all rows.
        prompts: of teachers that have their own; None: all read the student's.
    """

    reward_beta: float | None
    policy: Policy | None
    weights: ProblemWeights | None
    route: TeacherRoute | None
    prompts: TeacherPrompts | None

    @property
    def reads(self) -> list[str]:
        """The fields of the rows that `of` reads."""
        return ["uid", "rm_scores", *(["prompts"] if self.prompts is not None else ())]

    def of(self, orders: Sequence[Order], data: TensorDict) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The facts of B rows as fields for the workers (`OPDWorker.update_opd` says what each is), and metrics of them."""
        rows = [index for index, _, _ in orders]
        rewards = torch.stack([scores.sum() for scores in data["rm_scores"].unbind()]).float()
        weights = torch.ones(len(orders))
        if self.reward_beta is not None:
            weights = reward_weights(rewards, list(data["uid"]), beta=self.reward_beta)
        metrics = {
            "opd/reward_weight_max": weights.max().item(),
            "opd/reward_weight_min": weights.min().item(),
        }
        if self.weights is not None:
            of_prompts = self.weights.of_rows(rows)
            metrics["opd/problem_weight_mean"] = of_prompts.mean().item()
            metrics["opd/problem_weight_max"] = of_prompts.max().item()
            weights = weights * of_prompts
        row_ids = torch.tensor([row_id(order) for order in orders])
        facts = {"sample_weights": weights.float(), "row_id": row_ids, "row_score": rewards}
        if self.policy is not None:
            advantages = group_advantages(rewards, list(data["uid"]), by_std=self.policy.norm_adv_by_std)
            facts["advantage"] = advantages
            metrics["opd/advantage_max"] = advantages.max().item()
            metrics["opd/advantage_min"] = advantages.min().item()
            metrics["opd/advantage_zero"] = (advantages == 0).float().mean().item()
        if self.route is not None:
            facts["teacher"] = self.route.of_rows(rows)
        if self.prompts is not None:
            pairs = zip(self.prompts.of_rows(rows), data["prompts"].unbind(), strict=True)
            prompts = [asked if own is None else own for own, asked in pairs]
            facts[TEACHER_PROMPTS] = torch.nested.as_nested_tensor(prompts, layout=torch.jagged)
            lengths = [len(prompt) for prompt in prompts]
            metrics["opd/teacher_prompt_length/mean"] = sum(lengths) / len(lengths)
            metrics["opd/teacher_prompt_length/max"] = float(max(lengths))
        return facts, metrics
