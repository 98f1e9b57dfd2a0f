"""What the teacher reads in the place of each training prompt: `teacher.prompt` of the spec over the columns of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from opd.experiment import OpdAgentSpec, OpdSpec
from opd.experiment.errors import Problem, SpecError
from opd.experiment.prompt_template import PROMPT, filled
from opd.trainer.dataset import Encode, PromptDataset

_NUM_SHOWN = 5
_KEY, _LENGTH, _LACKS = "key", "length", "lacks"


class Unfilled(ValueError):
    """A row lacks what the template asks for; the text says what."""


def own_messages(template: str, row: Mapping[str, Any], *, prompt_key: str) -> list[dict[str, Any]]:
    """The row's messages with the last one of the user as the template writes it; the others stay as they are.

    Args:
        row: of the data set, by column.
        prompt_key: the column of its messages.

    Raises:
        Unfilled: the row has no message of the user in text, or no value in a column.
    """
    messages = [dict(message) for message in row[prompt_key]]
    last = max((place for place, message in enumerate(messages) if message.get("role") == "user"), default=None)
    if last is None or not isinstance(messages[last].get("content"), str):
        raise Unfilled("message of the user in text")
    asked = messages[last]["content"]
    messages[last]["content"] = filled(template, lambda name: asked if name == PROMPT else _text_of(row, name))
    return messages


def _text_of(row: Mapping[str, Any], name: str) -> str:
    value: Any = row.get(name)
    if name not in row:
        value = row
        for field in name.split("."):
            value = value.get(field) if isinstance(value, Mapping) else None
    if value is None or isinstance(value, Mapping | list):
        raise Unfilled(f"text or number in {name}")
    return str(value)


def _key_of(spec: OpdSpec | OpdAgentSpec, row: Mapping[str, Any]) -> str | None:
    """The key of the row's teacher where that has prompts of its own; what leads to no teacher is left to `TeacherRoute`."""
    name = spec.route.of(row.get(spec.route.by))
    key = "teacher" if spec.teacher is not None else f"teachers.{name}"
    teacher = spec.named_teachers.get(key)
    return key if teacher is not None and teacher.prompt is not None else None


def _ids(row: Mapping[str, Any], *, spec: OpdSpec | OpdAgentSpec, encode: Encode, prompt_key: str) -> list[int] | None:
    key = _key_of(spec, row)
    template = None if key is None else spec.named_teachers[key].prompt
    return None if template is None else encode(row, own_messages(template, row, prompt_key=prompt_key))


def _look(row: Mapping[str, Any], *, spec: OpdSpec | OpdAgentSpec, **how: Any) -> dict[str, Any]:
    found = {_KEY: _key_of(spec, row) or "", _LENGTH: 0, _LACKS: ""}
    try:
        return found | {_LENGTH: len(_ids(row, spec=spec, **how) or ())}
    except Unfilled as error:
        return found | {_LACKS: str(error)}


class TeacherPrompts:
    """The prompts of teachers that have their own, made from the data set's rows whenever they are asked for.

    The student's tokenizer and chat template write them, with the arguments and tools of the student's prompt, so that a response
    follows the same header in both. A row whose prompt is longer than its teacher's `max_prompt_length` leaves the data
    set, or is an error, as `data.filter_overlong` says of the student's.

    Raises:
        SpecError: rows lack what a template asks for, prompts are too long, or no row is left.
    """

    def __init__(self, dataset: PromptDataset, spec: OpdSpec | OpdAgentSpec) -> None:
        self._dataset, self._teachers = dataset, spec.named_teachers
        self._how: dict[str, Any] = {"spec": spec, "encode": dataset.encode, "prompt_key": dataset.prompt_key}
        rows = dataset.dataframe
        seen = rows.map(
            partial(_look, **self._how),
            num_proc=dataset.processes_for(len(rows)),
            remove_columns=rows.column_names,
            keep_in_memory=True,
            load_from_cache_file=False,
            desc="prompts of the teacher",
        )
        keys, lengths = list(seen[_KEY]), list(seen[_LENGTH])
        self._refuse_unfilled(keys, list(seen[_LACKS]))
        kept = [row for row in range(len(rows)) if not keys[row] or lengths[row] <= self._limit(keys[row])]
        if len(kept) < len(rows):
            self._drop(kept, keys, lengths)

    @classmethod
    def of(cls, dataset: PromptDataset, spec: OpdSpec | OpdAgentSpec) -> TeacherPrompts | None:
        """The prompts of a run; None: every teacher reads the student's."""
        has_own = any(teacher.prompt is not None for teacher in spec.named_teachers.values())
        return cls(dataset, spec) if has_own else None

    def of_rows(self, rows: Sequence[int]) -> list[Tensor | None]:
        """[P] int64 token ids for each of these rows of the data set; None: its teacher reads the student's prompt."""
        found = {row: _ids(self._dataset.dataframe[row], **self._how) for row in set(rows)}
        return [None if (ids := found[row]) is None else torch.tensor(ids) for row in rows]

    def _limit(self, key: str) -> int:
        limit = self._teachers[key].max_prompt_length
        assert limit is not None  # a default stands beside every prompt
        return limit

    def _refuse_unfilled(self, keys: Sequence[str], lacks: Sequence[str]) -> None:
        problems = []
        for key, what in dict.fromkeys(pair for pair in zip(keys, lacks, strict=True) if pair[1]):
            rows = [row for row, pair in enumerate(zip(keys, lacks, strict=True)) if pair == (key, what)]
            shown = ", ".join(map(str, rows[:_NUM_SHOWN])) + (", ..." if len(rows) > _NUM_SHOWN else "")
            problems.append(
                Problem(
                    path=f"{key}.prompt",
                    value=self._teachers[key].prompt,
                    rule=f"{len(rows)} of {len(keys)} training prompts have no {what} (rows {shown}, counted from 0 without overlong ones)",
                    fix="fill these rows, take them out of data.train, or write a template that does without",
                )
            )
        if problems:
            raise SpecError(problems)

    def _drop(self, kept: Sequence[int], keys: Sequence[str], lengths: Sequence[int]) -> None:
        num_dropped = len(keys) - len(kept)
        most = {
            key: max(length for of, length in zip(keys, lengths, strict=True) if of == key) for key in set(keys) - {""}
        }
        if not kept or not self._dataset.filter_overlong_prompts:
            fix = "raise the limit, shorten the template"
            raise SpecError(
                Problem(
                    path=f"{key}.max_prompt_length",
                    value=self._limit(key),
                    rule=f"{num_dropped} of {len(keys)} training prompts are longer as the teacher reads them, the "
                    f"longest has {longest} tokens" + ("" if kept else ", and none is left"),
                    fix=fix + (", or let them be dropped and counted with data.filter_overlong: true" if kept else ""),
                )
                for key, longest in sorted(most.items())
                if longest > self._limit(key)
            )
        print(
            f"dropped {num_dropped} of {len(keys)} training prompts, which are too long as the teacher reads them",
            flush=True,
        )
        self._dataset.drop_overlong_for_teacher(kept)
