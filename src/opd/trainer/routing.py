"""The teacher of each training prompt: `route` of the spec, looked up before the first step."""

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
