"""The teacher's preflight: findings of the first step about it, in the log and in the run directory; it ends no run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from transformers import AutoTokenizer

from opd.data.chat_template import render
from opd.experiment.run_config import RunConfig
from opd.monitor.preflight import look, table
from opd.runs import origin
from opd.runs.metrics import as_number
from opd.runs.run import Run
from opd.trainer.dataset import PromptDataset

logger = logging.getLogger(__name__)

_QUESTION = [{"role": "user", "content": "What is 1 + 1?"}]


def tell(row: Mapping[str, Any], ours: RunConfig, *, run: Run, data: PromptDataset) -> None:
    """Print the table, and keep it with the attempt; a fault of this look ends no run.

    Args:
        row: metrics of the run's first step.
        data: the training prompts, with the student's tokenizer.
    """
    try:
        assert ours.distillation is not None  # no other kind has a teacher
        if ours.distillation.served_teacher is not None:
            return  # the lines compare whole distributions
        alike = [
            same_prompt(data.tokenizer, ours.teacher_paths[key], teacher.trust_remote_code, data.template_kwargs)
            for key, teacher in ours.distillation.named_teachers.items()
        ]
        numbers = {name: float(value) for name, raw in row.items() if isinstance(value := as_number(raw), int | float)}
        # Of several teachers one that differs, or does not say, speaks for all.
        prompt = min(alike, key=[False, None, True].index)
        lines = look(numbers, num_shared_tokens=ours.run.valid_vocab, same_prompt=prompt)
        for line in table(lines):
            print(f"opd.preflight: {line}", flush=True)
        origin.add(run.stores[0], run.handle.attempt, preflight=list(map(asdict, lines)))
    except Exception:
        logger.warning("the teacher's preflight has failed", exc_info=True)


def same_prompt(student: Any, teacher: str, trust_remote_code: bool, template_kwargs: Mapping[str, Any]) -> bool | None:
    """Return True if the teacher's own chat template writes a question in the student's token ids. None means not known.

    Args:
        student: its tokenizer. teacher: path of the teacher.
    """
    try:
        own = AutoTokenizer.from_pretrained(teacher, trust_remote_code=trust_remote_code)
        ids = [
            list(one(render(one, _QUESTION, **template_kwargs), add_special_tokens=False)["input_ids"])
            for one in (student, own)
        ]
    except Exception:  # a template is a program of the model author: it may raise anything
        logger.info("the teacher's chat template is not compared with the student's", exc_info=True)
        return None
    return bool(ids[0] == ids[1])
