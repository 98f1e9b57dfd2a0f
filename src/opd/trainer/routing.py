"""Which of several teachers reads each training prompt: `route` of the spec, looked up in the data before the first step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from opd.config import OpdAgentSpec, OpdSpec
from opd.config.errors import Problem, SpecError
from opd.trainer.dataset import PromptDataset

_NUM_SHOWN = 5


class TeacherRoute:
    """The number of each prompt's teacher, in the order of `named_teachers`.

    Raises:
        SpecError: the data lack the column `route.by`, or a prompt's value in it leads to no teacher.
    """

    def __init__(self, dataset: PromptDataset, spec: OpdSpec | OpdAgentSpec) -> None:
        route, names = spec.route, sorted(spec.teachers)
        values = dataset.column(route.by)
        if values is None:
            problem = Problem(
                path="route.by",
                value=route.by,
                rule="the files of data.train have no such column",
                fix=f"name one that they have: {', '.join(dataset.dataframe.column_names)}",
            )
            raise SpecError([problem])
        unrouted = Counter(str(value) for value in values if str(value) not in route.to)
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
        self._numbers = torch.tensor([names.index(route.to[str(value)]) for value in values])
        counts = self._numbers.bincount(minlength=len(names)).tolist()
        shares = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
        print(f"route: training prompts by teacher: {shares}", flush=True)

    @classmethod
    def of(cls, dataset: PromptDataset, spec: OpdSpec | OpdAgentSpec) -> TeacherRoute | None:
        """The route of a run with several teachers; None: one teacher reads all."""
        return cls(dataset, spec) if spec.teachers else None

    def of_rows(self, rows: Sequence[int]) -> Tensor:
        """[R] int64, the teachers of rows of the data set, as it counts them now."""
        return self._numbers[list(rows)]
