"""The teacher's preflight: a short table from a run's first row of metrics, in the log and in the run directory; it ends no run."""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from transformers import AutoTokenizer

from opd.data.chat_template import render
from opd.experiment.run_config import RunConfig
from opd.monitor.faults import BY_NAME, SAME_MODEL
from opd.monitor.past import Past, Row, finite
from opd.runs import origin
from opd.runs.metrics import as_number
from opd.runs.run import Run

logger = logging.getLogger(__name__)

Verdict = Literal["ok", "warning", "not known"]

UNIFORM = 0.9
"""Share of a guess's entropy. A real teacher has a tenth of it, an untrained one all."""
IMPOSSIBLE = 7.0
"""Nats a token. A sound toy teacher had 4.8, a teacher read one position off 9.5 and more."""
PREFERRED_Z, PREFERRED = 2.0, 0.1
"""Standard errors of the correlation; a teacher whose upper end is below hardly tells right from wrong."""
_QUESTION = [{"role": "user", "content": "What is 1 + 1?"}]
_UNLIKELY = "the answers are less likely to the teacher than to a guess"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One check: its warnings and the measured metrics."""

    name: str
    verdict: Verdict
    says: str


CHECKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "chat template": ("prompt-template", ("data/prompts_off_template",)),
    "entropy": ("teacher-flat", ("opd/teacher_entropy", "opd/teacher_entropy_std", "opd/entropy")),
    "position": ("teacher-shifted", ("opd/teacher_prefers_neighbour", "opd/teacher_pairs")),
    "perplexity": ("divergence-floored", ("opd/teacher_surprise", "opd/surprise", "opd/floored_share")),
    "right answers": ("teacher-no-better", ("opd/teacher_preference", "opd/valid_rows", "opd/divergence")),
}
"""The fault of each line, and the metrics that it shows."""


def look(values: Mapping[str, Any], *, num_shared_tokens: int, same_prompt: bool | None) -> list[Line]:
    """Return the lines of a run's first training step; a missing metric makes a line `not known`.

    Args:
        same_prompt: True if the teacher's own chat template writes a question as the student's does; None means not known.
    """
    row, past = finite(values), Past()
    past.add(row)
    guess = math.log(max(num_shared_tokens, 1))
    own_template = {
        None: None, True: "",
        False: "the teacher's own template writes a question differently: it reads prompts in a foreign form",
    }[same_prompt]  # fmt: skip
    warnings = {"chat template": own_template, **_warnings(row, guess)}
    lines = []
    for name, (fault, metrics) in CHECKS.items():
        judged, own = BY_NAME[fault].judge(row, past), warnings[name]
        texts = [text for text in (f"{BY_NAME[fault].what} ({fault})" if judged else "", own) if text]
        verdict: Verdict = "warning" if texts else "not known" if judged is None or own is None else "ok"
        measured = ", ".join(f"{metric} {row[metric]:.3g}" for metric in metrics if metric in row)
        lines.append(Line(name=name, verdict=verdict, says="; ".join([*texts, measured or "not measured"])))
    return lines


def _warnings(row: Row, guess: float) -> dict[str, str | None]:
    """Return warnings that no fault has, by line: an empty text without one, and None if the row does not say.

    `guess` is the entropy of the uniform distribution in nats, and any token's -log p under it.
    """
    knows_nothing = row.get("opd/teacher_entropy", 0.0) > UNIFORM * guess
    surprise, preference, rows = (
        row.get(name) for name in ("opd/teacher_surprise", "opd/teacher_preference", "opd/valid_rows")
    )
    answers: str | None = None  # only different scores show which answers the teacher prefers
    if preference is not None and rows:
        error = PREFERRED_Z / math.sqrt(rows)
        if preference + error < PREFERRED:
            answers = "the teacher does not prefer the answers that score more"
        elif preference > error:
            answers = ""
    if row.get("opd/divergence", 1.0) < SAME_MODEL:
        answers = "the teacher is the student"
    return {
        "entropy": f"the teacher knows next to nothing of the answers: a guess has {guess:.3g}"
        if knows_nothing
        else "",
        "position": "",
        "perplexity": None if surprise is None else _UNLIKELY if surprise > max(guess, IMPOSSIBLE) else "",
        "right answers": answers,
    }


def table(lines: Iterable[Line]) -> list[str]:
    """Return the lines as text, in columns."""
    rows = [(one.name, one.verdict.upper() if one.verdict == "warning" else one.verdict, one.says) for one in lines]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"{name:<{widths[0]}}  {verdict:<{widths[1]}}  {says}" for name, verdict, says in rows]


def tell(
    row: Mapping[str, Any], ours: RunConfig, run: Run, *, tokenizer: Any, template_kwargs: Mapping[str, Any]
) -> None:
    """Print the table, and keep it with the attempt; a fault of this look ends no run.

    Args:
        row: metrics of the run's first step.
        tokenizer: the student's. template_kwargs: further arguments of every chat template.
    """
    try:
        assert ours.distillation is not None  # no other kind has a teacher
        if ours.distillation.served_teachers:
            return  # the lines compare whole distributions
        alike = [
            same_prompt(tokenizer, ours.teacher_paths[key], teacher.trust_remote_code, template_kwargs)
            for key, teacher in ours.distillation.named_teachers.items()
        ]
        numbers = {name: float(value) for name, raw in row.items() if isinstance(value := as_number(raw), int | float)}
        # Of several teachers one that differs, or does not say, speaks for all.
        prompt = min(alike, key=[False, None, True].index)
        lines = look(numbers, num_shared_tokens=ours.run.valid_vocab, same_prompt=prompt)
        for line in table(lines):
            print(f"opd.preflight: {line}", flush=True)
        origin.add(run.stores[0], run.attempt, preflight=list(map(asdict, lines)))
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
