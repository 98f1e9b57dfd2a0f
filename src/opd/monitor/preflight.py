"""A short table about the teacher from a run's first row of metrics, by the monitor's rules for a single row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from opd.monitor.faults import BY_NAME, IMPOSSIBLE, PREFERRED, PREFERRED_Z, SAME_MODEL, UNIFORM, value_of
from opd.monitor.past import Past
from opd.runs.headline import ENTROPY_KEYS

Verdict = Literal["ok", "warning", "not known"]
Row = Mapping[str, float]


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
        max_unshared_mass: as in the spec.
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


def look(row: Row, models: Models) -> list[Line]:
    """Return the lines of a run's first training step; a missing metric makes a line `not known`."""
    past = Past()
    past.add(row)
    return [
        _tokens(row, models),
        _template(row, past, models),
        _entropy(row, past, models),
        _position(row, past),
        _perplexity(row, past, models),
        _right_answers(row, past),
    ]


def table(lines: Iterable[Line]) -> list[str]:
    """Return the lines as text, in columns."""
    rows = [(one.name, one.verdict.upper() if one.verdict == "warning" else one.verdict, one.says) for one in lines]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"{name:<{widths[0]}}  {verdict:<{widths[1]}}  {says}" for name, verdict, says in rows]


def _fault(name: str, row: Row, past: Past) -> tuple[list[str], bool]:
    """Return the monitor's fault, if this row alone shows it, and whether the row can."""
    verdict = BY_NAME[name].judge(row, past)
    return ([f"{BY_NAME[name].what} ({name})"] if verdict else []), verdict is not None


def _tokens(row: Row, models: Models) -> Line:
    sides = {"student": models.student, "teacher": models.teacher}
    beyond = {side: num - models.shared for side, num in sides.items() if num > models.shared}
    if not beyond:
        return Line.of("tokenizer", f"{models.shared} tokens, the same in both", [])
    found = {side: value_of(row, f"opd/unshared_mass_{side}") for side in beyond}
    parts, warnings, allowed = [f"{models.shared} tokens in both"], [], models.max_unshared_mass
    for side, mass in found.items():
        share = "an unknown share" if mass is None else f"{mass:.2g}"
        parts.append(f"the {side} has {beyond[side]} more and puts {share} of its probability on them")
        if mass is not None and mass > allowed:
            warnings.append(
                f"the {side} puts more on tokens that the other lacks than opd.max_unshared_mass={allowed:g}"
            )
    return Line.of("tokenizer", "; ".join(parts), warnings, is_known=None not in found.values())


def _template(row: Row, past: Past, models: Models) -> Line:
    warnings, is_known = _fault("prompt-template", row, past)
    off = value_of(row, "data/prompts_off_template")
    says = "its header is not known" if off is None else f"{1 - off:.0%} of the prompts end with the student's header"
    if models.same_prompt is False:
        warnings.append("the teacher's own template writes a question differently: it reads prompts in a foreign form")
    elif models.same_prompt:
        says += "; the teacher's own writes a question alike"
    else:
        says += "; the teacher's own was not compared"
    return Line.of("chat template", says, warnings, is_known=is_known and models.same_prompt is not None)


def _entropy(row: Row, past: Past, models: Models) -> Line:
    mean, spread = value_of(row, "opd/teacher_entropy"), value_of(row, "opd/teacher_entropy_std")
    if mean is None or spread is None:
        return Line.of("entropy", "was not measured", [], is_known=False)
    warnings, is_known = _fault("teacher-flat", row, past)
    if not warnings and mean > UNIFORM * models.guess:
        warnings.append("the teacher knows next to nothing of the answers")
    own = value_of(row, *ENTROPY_KEYS)
    says = f"the teacher has {mean:.3g} nats a token, within {spread:.2g}; {models.guess:.3g} would be a guess"
    return Line.of(
        "entropy", says + ("" if own is None else f", the student has {own:.3g}"), warnings, is_known=is_known
    )


def _position(row: Row, past: Past) -> Line:
    share, pairs = value_of(row, "opd/teacher_prefers_neighbour"), value_of(row, "opd/teacher_pairs")
    if share is None or pairs is None:
        return Line.of("position", "was not measured", [], is_known=False)
    warnings, is_known = _fault("teacher-shifted", row, past)
    says = f"the teacher prefers a neighbour to {share:.0%} of {pairs:.0f} tokens"
    return Line.of("position", says if is_known else f"{says}, which are too few", warnings, is_known=is_known)


def _perplexity(row: Row, past: Past, models: Models) -> Line:
    surprise, own = value_of(row, "opd/teacher_surprise"), value_of(row, "opd/surprise")
    if surprise is None:
        return Line.of("perplexity", "was not measured", [], is_known=False)
    warnings, _ = _fault("divergence-floored", row, past)
    if surprise > max(models.guess, IMPOSSIBLE):
        warnings.append("the answers are less likely to the teacher than to a guess")
    says = f"of the answers to the teacher {_exp(surprise)}; {models.shared} would be a guess"
    return Line.of("perplexity", says + ("" if own is None else f", to the student {_exp(own)}"), warnings)


def _right_answers(row: Row, past: Past) -> Line:
    """Judge what the teacher can teach by the student's answers; the teacher's own answers are not drawn."""
    warnings, _ = _fault("teacher-no-better", row, past)
    divergence = value_of(row, "opd/divergence")
    if divergence is not None and divergence < SAME_MODEL:
        warnings.append(f"the teacher is the student: {divergence:.1g} nats a token are between them")
    preference, rows = value_of(row, "opd/teacher_preference"), value_of(row, "opd/valid_rows")
    if preference is None or not rows:
        says = (
            "which answers the teacher prefers shows only with different scores, and ranks that do not share sequences"
        )
        return Line.of("right answers", says, warnings, is_known=False)
    error = PREFERRED_Z / math.sqrt(rows)
    if preference + error < PREFERRED:
        warnings.append("the teacher does not prefer the answers that score more")
    says = f"score and the teacher's preference correlate by {preference:+.2f} ± {error:.2f} over {rows:.0f}"
    is_known = preference > error
    says += "" if is_known or warnings else ", which may be chance"
    return Line.of("right answers", says, warnings, is_known=is_known)


def _exp(nats: float) -> str:
    return f"{math.exp(min(nats, 700.0)):.3g}"  # a floored log-probability is beyond any float
