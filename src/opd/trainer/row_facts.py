"""Facts of a step's rows besides their tokens: weights, advantages, names, teachers and the teachers' prompts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

from opd.batch.builder import TEACHER_PROMPTS
from opd.experiment import OpdAgentSpec, OpdSpec
from opd.experiment.algorithm import Opd
from opd.experiment.errors import Problem, SpecError
from opd.losses import reward_weights
from opd.rollout.batches import TEACHER, Prompt
from opd.rollout.rows import Row
from opd.trainer.dataset import PromptDataset
from opd.trainer.teacher_prompts import TeacherPrompts

_NUM_SHOWN = 5


class TeacherRoute:
    """The number of each prompt's teacher.

    Raises:
        SpecError: the data lack the column `route.by`, or a prompt's value in it leads to none.
    """

    def __init__(self, dataset: PromptDataset, spec: OpdSpec | OpdAgentSpec) -> None:
        route, names = spec.route, spec.teacher_names
        values = dataset.column(route.by)
        if values is None:
            fix = f"name one that they have: {', '.join(dataset.dataframe.column_names)}"
            rule = "the files of data.train have no such column"
            raise SpecError([Problem(path="route.by", value=route.by, rule=rule, fix=fix)])
        unrouted = Counter(str(value) for value in values if route.of(value) is None)
        fix = f"add it with one of {', '.join(names)}, or take these prompts out of data.train"
        if problems := [
            Problem(
                path=f"route.to.{value}",
                rule=f"{count} of {len(values)} training prompts have {value!r} in the column {route.by}, which leads to no teacher",
                fix=fix,
            )
            for value, count in unrouted.most_common(_NUM_SHOWN)
        ]:
            raise SpecError(problems)
        read_by = [route.of(value) or "" for value in values]
        self._numbers = torch.tensor([names.index(name) for name in read_by], dtype=torch.int64)
        shares = ", ".join(f"{name} {read_by.count(name)}" for name in spec.routed)
        print(f"route: training prompts by teacher: {shares}", flush=True)

    def of_rows(self, rows: Sequence[int]) -> Tensor:
        """Return [R] int64, the teachers of rows of the data set, as it counts them now."""
        return self._numbers[list(rows)]

    def tell(self, prompts: Sequence[Prompt]) -> None:
        """Give prompts the number of their teacher, by which the rollout finds a served one."""
        for prompt in prompts:
            prompt[TEACHER] = int(self._numbers[prompt["index"]])


def group_advantages(scores: Tensor, uids: Sequence[str], *, by_std: bool) -> Tensor:
    """Return [R] float32: each row's score less its prompt's mean and, `by_std`, over its prompt's standard deviation.

    Args:
        scores: [R] one scalar a row.
        uids: [R] the prompt that each row answers. A row without siblings has nothing to be compared with: 0, where verl keeps its score.
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


def put_advantages(rows: Sequence[Row], algorithm: DictConfig) -> None:
    """Give rows the columns `advantages` and `returns` by verl's estimator of the config."""
    name = algorithm.adv_estimator
    made = get_adv_estimator_fn(name)(
        token_level_rewards=pad_sequence([row.columns["rm_scores"] for row in rows], batch_first=True),
        response_mask=pad_sequence([row.columns["response_mask"] for row in rows], batch_first=True),
        index=np.asarray([row.uid for row in rows], dtype=object),
        config=algorithm,
        **({"norm_adv_by_std_in_grpo": algorithm.norm_adv_by_std_in_grpo} if name == "grpo" else {}),
    )
    for column, values in zip(("advantages", "returns"), made, strict=True):
        for row, own in zip(rows, values, strict=True):
            row.columns[column] = own[: len(row.response)]


@dataclass(frozen=True, kw_only=True)
class RowFacts:
    """The facts of a distillation's rows.

    Args:
        weights: of the prompts. None means that all count alike.
        route: to one of several teachers. None means that one teacher reads all rows.
        prompts: of teachers that have their own. None means that all read the student's.
    """

    opd: Opd
    weights: Tensor | None
    route: TeacherRoute | None
    prompts: TeacherPrompts | None

    def put(self, rows: Sequence[Row]) -> dict[str, float]:
        """Give rows their columns (`OPDWorker.make_updates` says what each is); return metrics of them."""
        indices, uids = [row.order.index for row in rows], [row.uid for row in rows]
        rewards = torch.tensor([row.score for row in rows])
        weights = torch.ones(len(rows))
        if self.opd.reward_beta is not None:
            weights = reward_weights(rewards, uids, beta=self.opd.reward_beta)
        metrics = _ends("opd/reward_weight", weights)
        if self.weights is not None:
            of_prompts = self.weights[indices]
            metrics["opd/problem_weight_mean"] = of_prompts.mean().item()
            metrics["opd/problem_weight_max"] = of_prompts.max().item()
            weights = weights * of_prompts
        facts = {"sample_weights": weights.float(), "row_score": rewards}
        facts["row_id"] = torch.tensor([row.order.row_id for row in rows])
        if self.opd.has_policy:
            facts["advantage"] = group_advantages(rewards, uids, by_std=self.opd.policy.norm_adv_by_std)
            metrics |= _ends("opd/advantage", facts["advantage"])
            metrics["opd/advantage_zero"] = (facts["advantage"] == 0).float().mean().item()
        if self.route is not None:
            facts["teacher"] = self.route.of_rows(indices)
        for name, values in facts.items():
            for row, value in zip(rows, values, strict=True):
                row.columns[name] = value
        if self.prompts is not None:
            for row, own in zip(rows, self.prompts.of_rows(indices), strict=True):
                row.columns[TEACHER_PROMPTS] = row.prompt if own is None else own
            lengths = [len(row.columns[TEACHER_PROMPTS]) for row in rows]
            metrics["opd/teacher_prompt_length/mean"] = sum(lengths) / len(lengths)
            metrics["opd/teacher_prompt_length/max"] = float(max(lengths))
        return metrics


def _ends(name: str, values: Tensor) -> dict[str, float]:
    return {f"{name}_max": values.max().item(), f"{name}_min": values.min().item()}
