"""A short table about the teacher from a run's first row of metrics, by the monitor's rules for a single row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from opd.monitor.faults import BY_NAME, SAME_MODEL
from opd.monitor.past import Past, Row, finite

Verdict = Literal["ok", "warning", "not known"]

UNIFORM = 0.9
"""Share of a guess's entropy. A real teacher has a tenth of it, an untrained one all."""
IMPOSSIBLE = 7.0
"""Nats a token. A sound toy teacher had 4.8, a teacher read one position off 9.5 and more."""
PREFERRED_Z, PREFERRED = 2.0, 0.1
"""Standard errors of the correlation; a teacher whose upper end is below hardly tells right from wrong."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One check: its warnings and the measured metrics."""

    name: str
    verdict: Verdict
    says: str

    @classmethod
    def read(cls, records: object) -> list[Line]:
        """Read lines as `dataclasses.asdict` wrote them; leave out other content."""
        found = [one for one in records if isinstance(one, dict)] if isinstance(records, list) else []
        return [
            cls(name=str(one.get("name", "")), verdict=one["verdict"], says=str(one.get("says", "")))
            for one in found
            if one.get("verdict") in get_args(Verdict)
        ]


@dataclass(frozen=True, kw_only=True)
class Models:
    """Facts about student and teacher.

    `same_prompt` is True if the teacher's own chat template writes a question as the student's does; None means not known.
    """

    num_shared_tokens: int
    same_prompt: bool | None

    @property
    def guess(self) -> float:
        """Nats: entropy of the uniform distribution over the shared tokens, and any token's -log p under it."""
        return math.log(max(self.num_shared_tokens, 1))


def look(values: Mapping[str, Any], models: Models) -> list[Line]:
    """Return the lines of a run's first training step; a missing metric makes a line `not known`."""
    row, past = finite(values), Past()
    past.add(row)
    lines = []
    for name, (fault, metrics, check) in CHECKS.items():
        judged, own = BY_NAME[fault].judge(row, past), check(row, models)
        warnings = [text for text in (f"{BY_NAME[fault].what} ({fault})" if judged else "", own) if text]
        verdict: Verdict = "warning" if warnings else "not known" if judged is None or own is None else "ok"
        measured = ", ".join(f"{metric} {row[metric]:.3g}" for metric in metrics if metric in row)
        lines.append(Line(name=name, verdict=verdict, says="; ".join([*warnings, measured or "not measured"])))
    return lines


def table(lines: Iterable[Line]) -> list[str]:
    """Return the lines as text, in columns."""
    rows = [(one.name, one.verdict.upper() if one.verdict == "warning" else one.verdict, one.says) for one in lines]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"{name:<{widths[0]}}  {verdict:<{widths[1]}}  {says}" for name, verdict, says in rows]


Check = Callable[[Row, Models], str | None]
"""A warning that no fault has, an empty text without one, and None if the row does not say."""


def _template(row: Row, models: Models) -> str | None:
    if models.same_prompt is None:
        return None
    foreign = "the teacher's own template writes a question differently: it reads prompts in a foreign form"
    return "" if models.same_prompt else foreign


def _entropy(row: Row, models: Models) -> str | None:
    is_guess = row.get("opd/teacher_entropy", 0.0) > UNIFORM * models.guess
    return f"the teacher knows next to nothing of the answers: a guess has {models.guess:.3g}" if is_guess else ""


def _perplexity(row: Row, models: Models) -> str | None:
    if (surprise := row.get("opd/teacher_surprise")) is None:
        return None
    return (
        "the answers are less likely to the teacher than to a guess" if surprise > max(models.guess, IMPOSSIBLE) else ""
    )


def _right_answers(row: Row, models: Models) -> str | None:
    """Judge what the teacher can teach by the student's answers; the teacher's own answers are not drawn."""
    if row.get("opd/divergence", 1.0) < SAME_MODEL:
        return "the teacher is the student"
    preference, rows = row.get("opd/teacher_preference"), row.get("opd/valid_rows")
    if preference is None or not rows:  # only different scores show which answers the teacher prefers
        return None
    error = PREFERRED_Z / math.sqrt(rows)
    if preference + error < PREFERRED:
        return "the teacher does not prefer the answers that score more"
    return "" if preference > error else None


CHECKS: dict[str, tuple[str, tuple[str, ...], Check]] = {
    "chat template": ("prompt-template", ("data/prompts_off_template",), _template),
    "entropy": ("teacher-flat", ("opd/teacher_entropy", "opd/teacher_entropy_std", "opd/entropy"), _entropy),
    "position": ("teacher-shifted", ("opd/teacher_prefers_neighbour", "opd/teacher_pairs"), lambda row, models: ""),
    "perplexity": ("divergence-floored", ("opd/teacher_surprise", "opd/surprise", "opd/floored_share"), _perplexity),
    "right answers": (
        "teacher-no-better",
        ("opd/teacher_preference", "opd/valid_rows", "opd/divergence"),
        _right_answers,
    ),
}
"""The fault of each line, the metrics that it shows, and its own warning."""
