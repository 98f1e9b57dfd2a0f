"""Signs of silent faults in a step's rows: twice the same, empty, without the template's header."""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from opd.data.chat_template import render
from opd.rollout.rows import Row

logger = logging.getLogger(__name__)

_PROBES = ("a", "1 + 1 =")  # questions that end otherwise: a tokenizer may join their end with what follows
MIN_ANSWER_TOKENS = 2
"""An answer is at least a token and its end."""
MIN_PROMPTS = 4
"""Fewer prompts a step may be drawn twice in a row by chance."""
NUM_STEPS = 8
"""Steps back to which a step's prompts are compared."""


def generation_header(tokenizer: Any, template_kwargs: Mapping[str, Any]) -> list[int]:
    """Return the token ids that the model's chat template puts after a question, as the answer's header.

    They are read off whole prompts, since many a tokenizer reads a text's first word otherwise than the same word within it.
    Empty means that there is no header, that the question's own tokens run into it, or that the template rejects a lone question.
    """
    try:
        found = [_header_after(probe, tokenizer, template_kwargs) for probe in _PROBES]
    except Exception:  # a template is a program of the model author: it may raise anything
        logger.info("prompts are not compared with the model's chat template", exc_info=True)
        return []
    return found[0] if all(ids == found[0] for ids in found) else []


def _header_after(question: str, tokenizer: Any, template_kwargs: Mapping[str, Any]) -> list[int]:
    message = [{"role": "user", "content": question}]
    texts = [render(tokenizer, message, is_finished=is_finished, **template_kwargs) for is_finished in (True, False)]
    without, prompt = (list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    return prompt[len(without) :] if prompt[: len(without)] == without else []


class RowSigns:
    """Metrics of each step's prompts and answers.

    Args:
        header: end of every prompt (`generation_header`); empty: that is not looked at.
        num_prompts: prompts of the training data.
    """

    def __init__(self, header: Sequence[int], *, num_prompts: int) -> None:
        self._header = torch.tensor(list(header), dtype=torch.int64)
        self._num_prompts = num_prompts
        self._asked: deque[set[int]] = deque(maxlen=NUM_STEPS)

    def of(self, rows: Sequence[Row], *, max_tokens: int) -> dict[str, float]:
        """Return the step's metrics; an answer may have `max_tokens`."""
        by_prompt = {row.order.index: row.prompt for row in rows}
        least = min(MIN_ANSWER_TOKENS, max_tokens)
        different = {tuple(ids.tolist()) for ids in by_prompt.values()}
        metrics = {
            "data/duplicate_prompts": 1.0 - len(different) / len(by_prompt) if by_prompt else 0.0,
            "rollout/empty": sum(len(row.response) < least for row in rows) / max(len(rows), 1),
        }
        answers = [(row.order.index, tuple(row.response.tolist())) for row in rows]
        if len(answers) > len(by_prompt):
            metrics["rollout/duplicate_answers"] = (len(answers) - len(set(answers))) / (len(answers) - len(by_prompt))
        if len(header := self._header):
            off = [not torch.equal(ids[-len(header) :].cpu(), header) for ids in by_prompt.values()]
            metrics["data/prompts_off_template"] = sum(off) / max(len(off), 1)
        # There only where it is so: a resumed run does not know the steps before, and its sound rows are the same.
        asked = set(by_prompt)
        num_others = (
            self._num_prompts // max(len(asked), 1) - 1
        )  # steps until data in one fixed order repeat themselves
        if len(asked) >= MIN_PROMPTS and asked in list(self._asked)[:num_others]:
            metrics["data/repeated_prompts"] = 1.0
        self._asked.appendleft(asked)
        return metrics
