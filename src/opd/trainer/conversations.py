"""The data set of supervised fine-tuning on given answers: conversations, read into rows of token ids once."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import datasets
import torch

from opd.data.answered import AnsweredRow, answer_row, answered_rows
from opd.data.chat_template import UnfitTemplate
from opd.data.messages import plain
from opd.experiment import SftSpec
from opd.experiment.algorithm import TOOLS
from opd.experiment.errors import show
from opd.rollout.rows import Order, Row, row_of
from opd.trainer.dataset import PLACE, PromptDataset
from opd.trainer.teacher_answers import TeacherAnswers

logger = logging.getLogger(__name__)


class ConversationDataset(PromptDataset):
    """Rows of the conversations in the files' column `messages`; see `opd.data.answered` for what a row is.

    A prompt is all before a row's first trained token; `PromptDataset` says what happens to long prompts. A response longer than
    `data.max_response_length` loses its end. `num_cut` counts these. The reader demands an answer of every conversation.
    """

    num_cut: int = 0

    def maybe_filter_out_long_prompts(self, dataframe: datasets.Dataset) -> datasets.Dataset:
        tokenizer, key, kwargs = self.tokenizer, self.prompt_key, self.template_kwargs

        def rows_of(batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
            found: list[dict[str, Any]] = []
            tools = batch.get(TOOLS) or [None] * len(batch[PLACE])
            for place, messages, offered in zip(batch[PLACE], batch[key], tools, strict=True):
                more = {TOOLS: json.loads(offered)} if offered else {}
                try:
                    rows = answered_rows(tokenizer, plain(messages), **kwargs, **more)
                except UnfitTemplate as error:
                    problems = [replace(p, source=f"conversation {show(messages)}") for p in error.problems]
                    raise UnfitTemplate(problems) from error
                found += [{PLACE: place, **row._asdict()} for row in rows]
            return {name: [row[name] for row in found] for name in (PLACE, *AnsweredRow._fields)}

        rows = dataframe.map(
            rows_of,
            batched=True,
            remove_columns=dataframe.column_names,
            num_proc=self.processes_for(len(dataframe)),
            desc="conversations to token ids",
        )
        kept = self.without_overlong(rows, lambda row: len(row["prompt"]))
        limit = int(self.config.max_response_length)
        self.num_cut = sum(len(mask) > limit for mask in kept["mask"])
        if self.num_cut:
            logger.warning(
                "%d of %d rows exceed data.max_response_length=%d and lose their end", self.num_cut, len(kept), limit
            )
        return kept

    def row(self, index: int) -> AnsweredRow:
        """Return a row as it is trained, the same in every step."""
        fields = self.dataframe[index]
        row = AnsweredRow(fields["prompt"], fields["response"], fields["mask"])
        return row.cut(int(self.config.max_response_length))

    def __getitem__(self, item: int) -> dict[str, Any]:
        # verl counts a batch by its raw prompts, and sizes it by a tensor.
        return {"index": int(item), "raw_prompt": (), "dummy_tensor": torch.tensor([0], dtype=torch.uint8)}


class GivenAnswers:
    """Rows of supervised fine-tuning: the conversations' own, or prompts with the answers that a teacher gave.

    Args:
        dataset: conversations, or prompts.
    """

    def __init__(self, dataset: PromptDataset, spec: SftSpec) -> None:
        self._dataset, self._answers = dataset, None
        if not isinstance(dataset, ConversationDataset):
            files = spec.sft.teacher_answers or ()
            self._answers = TeacherAnswers(files, dataset, seed=spec.seed, key="sft.teacher_answers")

    def row(self, index: int, step: int) -> AnsweredRow:
        """Return a conversation's row, or a prompt with the answer that seed, step and prompt draw."""
        dataset = self._dataset
        if self._answers is None:
            assert isinstance(dataset, ConversationDataset)
            return dataset.row(index)
        [answer] = self._answers.of(index, step=step, num_samples=1)
        messages = dataset.dataframe[index][dataset.prompt_key]
        row = answer_row(dataset.tokenizer, messages, answer, **dataset.template_kwargs)
        return row.cut(int(dataset.config.max_response_length))

    def rows(self, indices: Sequence[int], step: int) -> tuple[list[Row], int]:
        """Return rows of a step, and how many of them were cut."""
        read = [(index, self.row(index, step)) for index in indices]
        rows = [row_of(Order(index), str(index), row.prompt, row.response, row.mask) for index, row in read]
        return rows, sum(row.is_cut for _, row in read)
