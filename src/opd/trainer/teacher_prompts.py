"""Prompts that a teacher reads in the place of the training prompts: `teacher.prompt` of the spec over the columns of the data."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from datasets import Features, List, Value
from torch import Tensor

from opd.experiment import OpdAgentSpec, OpdSpec
from opd.experiment.errors import Problem, SpecError
from opd.experiment.prompt_template import PROMPT, filled
from opd.trainer.dataset import Encode, PromptDataset

TOO_LONG = "are too long as the teacher reads them"
_NUM_SHOWN = 5
_KEY, _IDS, _LACKS = "key", "ids", "lacks"


class Unfilled(ValueError):
    """A row without a value that the template needs, which the text names."""


def own_messages(template: str, row: Mapping[str, Any], *, prompt_key: str) -> list[dict[str, Any]]:
    """Return the row's messages with the last message of the user as the template writes it.

    Args:
        row: of the data set, by column. prompt_key: the column of its messages.

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
    value: Any = row
    for field in [name] if name in row else name.split("."):
        value = value.get(field) if isinstance(value, Mapping) else None
    if value is None or isinstance(value, Mapping | list):
        raise Unfilled(f"text or number in {name}")
    return str(value)


def _made(row: Mapping[str, Any], *, spec: OpdSpec | OpdAgentSpec, encode: Encode, prompt_key: str) -> dict[str, Any]:
    """Return the row's teacher where that has prompts of its own, with the prompt's token ids or the value that the row lacks."""
    key = "teacher" if spec.teacher is not None else f"teachers.{spec.route.of(row.get(spec.route.by))}"
    teacher = spec.named_teachers.get(key)  # `TeacherRoute` refuses a row that leads to none
    if teacher is None or teacher.prompt is None:
        return {_KEY: "", _IDS: [], _LACKS: ""}
    try:
        messages = own_messages(teacher.prompt, row, prompt_key=prompt_key)
    except Unfilled as error:
        return {_KEY: key, _IDS: [], _LACKS: str(error)}
    return {_KEY: key, _IDS: encode(row, messages), _LACKS: ""}


class TeacherPrompts:
    """The prompts of teachers that have their own.

    The student's tokenizer and chat template write them, with the arguments and tools of the student's prompt. So a response
    follows the same header in both. A row whose prompt is longer than its teacher's `max_prompt_length` leaves the data
    set, or is an error, as `data.filter_overlong` says of the student's.

    Raises:
        SpecError: rows lack a value that a template needs, prompts are too long, or no row is left.
    """

    def __init__(self, dataset: PromptDataset, spec: OpdSpec | OpdAgentSpec) -> None:
        self._dataset, self._teachers, rows = dataset, spec.named_teachers, dataset.dataframe
        self._made = rows.map(
            partial(_made, spec=spec, encode=dataset.encode, prompt_key=dataset.prompt_key),
            num_proc=dataset.processes_for(len(rows)),
            remove_columns=rows.column_names,
            features=Features({_KEY: Value("string"), _IDS: List(Value("int64")), _LACKS: Value("string")}),
            load_from_cache_file=False,
            desc="prompts of the teacher",
        )
        self._numbers = {place: number for number, place in enumerate(dataset.places)}
        keys = list(self._made[_KEY])
        self._refuse_unfilled(keys, list(self._made[_LACKS]))
        lengths = [len(ids) for ids in self._made[_IDS]]
        kept = [row for row, key in enumerate(keys) if not key or lengths[row] <= self._limit(key)]
        if len(kept) < len(rows):
            self._drop(kept, keys, lengths)

    def of_rows(self, rows: Sequence[int]) -> list[Tensor | None]:
        """Return [P] int64 token ids for each of these rows of the data set. None means the student's prompt."""
        found = [self._made[self._numbers[self._dataset.places[row]]] for row in rows]
        return [torch.tensor(one[_IDS]) if one[_KEY] else None for one in found]

    def _limit(self, key: str) -> int:
        limit = self._teachers[key].max_prompt_length
        assert limit is not None  # every prompt has a default
        return limit

    def _refuse_unfilled(self, keys: Sequence[str], lacks: Sequence[str]) -> None:
        problems = []
        pairs = list(zip(keys, lacks, strict=True))
        for key, what in dict.fromkeys(pair for pair in pairs if pair[1]):
            rows = [row for row, pair in enumerate(pairs, start=1) if pair == (key, what)]
            shown = ", ".join(map(str, rows[:_NUM_SHOWN])) + (", ..." if len(rows) > _NUM_SHOWN else "")
            rule = f"{len(rows)} of {len(keys)} training prompts have no {what} (rows {shown}, counted from 1 without overlong ones)"
            fix = "fill these rows, take them out of data.train, or write a template that does without"
            problems.append(Problem(path=f"{key}.prompt", value=self._teachers[key].prompt, rule=rule, fix=fix))
        if problems:
            raise SpecError(problems)

    def _drop(self, kept: Sequence[int], keys: Sequence[str], lengths: Sequence[int]) -> None:
        dropped = f"{len(keys) - len(kept)} of {len(keys)} training prompts"
        if kept and self._dataset.filter_overlong_prompts:
            print(f"dropped {dropped}, which {TOO_LONG}", flush=True)
            self._dataset.keep(kept, TOO_LONG)
            return
        most = {key: max(length for of, length in zip(keys, lengths, strict=True) if of == key) for key in set(keys)}
        fix = "raise the limit, shorten the template"
        raise SpecError(
            Problem(
                path=f"{key}.max_prompt_length",
                value=self._limit(key),
                rule=f"{dropped} are longer as the teacher reads them, the longest has {longest} tokens"
                + ("" if kept else ", and none is left"),
                fix=fix + (", or let them be dropped and counted with data.filter_overlong: true" if kept else ""),
            )
            for key, longest in sorted(most.items())
            if key and longest > self._limit(key)
        )
