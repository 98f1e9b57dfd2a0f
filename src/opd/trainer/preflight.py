"""The teacher's preflight: what the first step has shown of it, in the log and in the run directory; no run is ended by it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from transformers import AutoTokenizer

from opd.data.chat_template import render
from opd.experiment.run_config import RunConfig
from opd.memory import Plan
from opd.memory.job import GIB
from opd.monitor.preflight import Line, look, table
from opd.runs import origin
from opd.runs.headline import MEMORY_KEYS, first_of
from opd.runs.metrics import as_number
from opd.runs.run import Run
from opd.trainer.dataset import PromptDataset

logger = logging.getLogger(__name__)

_QUESTION = [{"role": "user", "content": "What is 1 + 1?"}]


def tell(row: Mapping[str, Any], ours: RunConfig, *, run: Run | None, data: PromptDataset, plan: Plan | None) -> None:
    """Print the table, and keep it with the attempt; a fault of this look ends no run.

    Args:
        row: metrics of the run's first step.
        data: the training prompts, with the student's tokenizer.
        plan: the memory plan that the workers follow.
    """
    try:
        lines = _lines(row, ours, data=data, plan=plan)
        for line in table(lines):
            print(f"opd.preflight: {line}", flush=True)
        if run is not None:
            origin.add(run.stores[0], run.handle.attempt, preflight=list(map(asdict, lines)))
    except Exception:
        logger.warning("the teacher's preflight is not told", exc_info=True)


def _lines(row: Mapping[str, Any], ours: RunConfig, *, data: PromptDataset, plan: Plan | None) -> list[Line]:
    assert ours.distillation is not None  # no other kind has a teacher
    alike = [
        same_prompt(
            data.tokenizer,
            ours.teacher_paths[key],
            trust_remote_code=teacher.trust_remote_code,
            template_kwargs=data.template_kwargs,
        )
        for key, teacher in ours.distillation.named_teachers.items()
    ]
    numbers = {name: float(value) for name, raw in row.items() if isinstance(value := as_number(raw), int | float)}
    # Of several teachers one that differs, or does not say, speaks for all.
    prompt = min(alike, key=[False, None, True].index)
    lines = look(numbers, num_shared_tokens=ours.run.valid_vocab, same_prompt=prompt)
    return [*lines, memory(plan, first_of(numbers, MEMORY_KEYS))]


def same_prompt(
    student: Any, teacher: str, *, trust_remote_code: bool, template_kwargs: Mapping[str, Any]
) -> bool | None:
    """Whether the teacher's own chat template writes a question in the student's token ids; None: it does not say.

    Args:
        student: its tokenizer.
        teacher: where the teacher's is.
        template_kwargs: the template's arguments.
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


def memory(plan: Plan | None, measured_gib: float | None) -> Line:
    """The plan's phases beside what the first step took.

    Args:
        measured_gib: most memory of a rank that was allocated at once; None or 0: not measured.
    """
    measured = f"{measured_gib:.3g} GiB measured" if measured_gib else "not measured"
    if plan is None:
        says = f"no plan: the models' configs do not name their sizes; {measured}"
        return Line(name="memory", verdict="not known", says=says)
    phases = ", ".join(f"{phase.name} {phase.total / GIB:.3g}" for phase in plan.phases)
    if (size := plan.job.device_bytes) is None:
        says = f"planned GiB a rank: {phases}; the device's memory is not known; {measured}"
        return Line(name="memory", verdict="not known", says=says)
    says = f"planned GiB of {size / GIB:.3g} a rank: {phases}; {measured}"
    return Line(
        name="memory", verdict="ok" if plan.fits else "warning", says=says if plan.fits else f"it does not fit; {says}"
    )
