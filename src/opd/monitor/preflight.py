"""A short table about the teacher from a run's first row of metrics, by the monitor's rules for a single row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from opd.monitor.faults import BY_NAME, SAME_MODEL, entropy
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
    """One check: the measured values, or why there are none."""

    name: str
    verdict: Verdict
    says: str

    @classmethod
    def of(cls, name: str, says: str, warnings: list[str], *, is_known: bool = True) -> Line:
        """Make the line of a check with its warnings."""
        verdict: Verdict = "warning" if warnings else "ok" if is_known else "not known"
        return cls(name=name, verdict=verdict, says="; ".join([*warnings, says]))

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

    Args:
        shared: leading ids with the same token in both.
        student, teacher: ids of each; not more than `shared` where the other has them all.
        same_prompt: True if the teacher's own chat template writes a question as the student's does; None means not known.
    """

    shared: int
    student: int
    teacher: int
    max_unshared_mass: float
    same_prompt: bool | None

    @property
    def guess(self) -> float:
        """Nats: entropy of the uniform distribution over the shared tokens, and any token's -log p under it."""
        return math.log(max(self.shared, 1))


def look(values: Mapping[str, Any], models: Models) -> list[Line]:
    """Return the lines of a run's first training step; a missing metric makes a line `not known`."""
    row, past = finite(values), Past()
    past.add(row)
    checks = {
        "chat template": ("prompt-template", _template),
        "entropy": ("teacher-flat", _entropy),
        "position": ("teacher-shifted", _position),
        "perplexity": ("divergence-floored", _perplexity),
        "right answers": ("teacher-no-better", _right_answers),
    }
    lines = [_tokens(row, models)]
    for name, (fault, check) in checks.items():
        verdict = BY_NAME[fault].judge(row, past)
        warnings = [f"{BY_NAME[fault].what} ({fault})"] if verdict else []
        says, is_known = check(row, models, warnings)
        if is_known is None:  # the verdict of the fault says
            is_known = verdict is not None
        lines.append(Line.of(name, says, warnings, is_known=is_known))
    return lines


def table(lines: Iterable[Line]) -> list[str]:
    """Return the lines as text, in columns."""
    rows = [(one.name, one.verdict.upper() if one.verdict == "warning" else one.verdict, one.says) for one in lines]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"{name:<{widths[0]}}  {verdict:<{widths[1]}}  {says}" for name, verdict, says in rows]


def _tokens(row: Row, models: Models) -> Line:
    sides = {"student": models.student, "teacher": models.teacher}
    beyond = {side: num - models.shared for side, num in sides.items() if num > models.shared}
    if not beyond:
        return Line.of("tokenizer", f"{models.shared} tokens, the same in both", [])
    found = {side: row.get(f"opd/unshared_mass_{side}") for side in beyond}
    parts, warnings, allowed = [f"{models.shared} tokens in both"], [], models.max_unshared_mass
    for side, mass in found.items():
        share = "an unknown share" if mass is None else f"{mass:.2g}"
        parts.append(f"the {side} has {beyond[side]} more and puts {share} of its probability on them")
        if mass is not None and mass > allowed:
            warnings.append(
                f"the {side} puts more on tokens that the other lacks than opd.max_unshared_mass={allowed:g}"
            )
    return Line.of("tokenizer", "; ".join(parts), warnings, is_known=None not in found.values())


Check = tuple[str, bool | None]
"""The measured values in words, and True if they say something; None leaves that to the fault's verdict."""


def _template(row: Row, models: Models, warnings: list[str]) -> Check:
    off = row.get("data/prompts_off_template")
    says = "its header is not known" if off is None else f"{1 - off:.0%} of the prompts end with the student's header"
    if models.same_prompt is False:
        warnings.append("the teacher's own template writes a question differently: it reads prompts in a foreign form")
        return says, True
    own = "writes a question alike" if models.same_prompt else "was not compared"
    return f"{says}; the teacher's own {own}", off is not None and models.same_prompt is not None


def _entropy(row: Row, models: Models, warnings: list[str]) -> Check:
    mean, spread, own = row.get("opd/teacher_entropy"), row.get("opd/teacher_entropy_std"), entropy(row)
    if mean is None or spread is None:
        return "was not measured", False
    if not warnings and mean > UNIFORM * models.guess:
        warnings.append("the teacher knows next to nothing of the answers")
    says = f"the teacher has {mean:.3g} nats a token, within {spread:.2g}; {models.guess:.3g} would be a guess"
    return says + ("" if own is None else f", the student has {own:.3g}"), None


def _position(row: Row, models: Models, warnings: list[str]) -> Check:
    share, pairs = row.get("opd/teacher_prefers_neighbour"), row.get("opd/teacher_pairs")
    if share is None or pairs is None:
        return "was not measured", False
    return f"the teacher prefers a neighbour to {share:.0%} of {pairs:.0f} tokens", None


def _perplexity(row: Row, models: Models, warnings: list[str]) -> Check:
    surprise, own = row.get("opd/teacher_surprise"), row.get("opd/surprise")
    if surprise is None:
        return "was not measured", False
    if surprise > max(models.guess, IMPOSSIBLE):
        warnings.append("the answers are less likely to the teacher than to a guess")
    says = f"of the answers to the teacher {_exp(surprise)}; {models.shared} would be a guess"
    return says + ("" if own is None else f", to the student {_exp(own)}"), True


def _right_answers(row: Row, models: Models, warnings: list[str]) -> Check:
    """Judge what the teacher can teach by the student's answers; the teacher's own answers are not drawn."""
    divergence = row.get("opd/divergence")
    if divergence is not None and divergence < SAME_MODEL:
        warnings.append(f"the teacher is the student: {divergence:.1g} nats a token are between them")
    preference, rows = row.get("opd/teacher_preference"), row.get("opd/valid_rows")
    if preference is None or not rows:
        return "only different scores show which answers the teacher prefers, on ranks that share no sequences", False
    error = PREFERRED_Z / math.sqrt(rows)
    if preference + error < PREFERRED:
        warnings.append("the teacher does not prefer the answers that score more")
    is_known = preference > error
    says = f"score and the teacher's preference correlate by {preference:+.2f} ± {error:.2f} over {rows:.0f}"
    return says + ("" if is_known or warnings else ", which may be chance"), is_known


def _exp(nats: float) -> str:
    return f"{math.exp(min(nats, 700.0)):.3g}"  # a floored log-probability is beyond any float
