"""What the workers are told of a step's rows besides their tokens: weights, advantages, names, teachers and the teachers' prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor

from opd.batch import TEACHER_PROMPTS
from opd.config.algorithm import Policy
from opd.losses import reward_weights
from opd.trainer.advantages import group_advantages
from opd.trainer.problem_weights import ProblemWeights
from opd.trainer.routing import TeacherRoute
from opd.trainer.teacher_prompts import TeacherPrompts
from opd.trainer.token_log import Order, row_id


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
