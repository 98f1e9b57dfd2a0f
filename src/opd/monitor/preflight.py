"""The teacher looked at once, in a run's first row of metrics: what it shows of each rule that needs no more, as a short table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from opd.monitor.faults import BY_NAME, IMPOSSIBLE, PREFERRED, PREFERRED_Z, SAME_MODEL, UNIFORM, value_of
from opd.monitor.past import Past
from opd.runs.headline import ENTROPY_KEYS

Verdict = Literal["ok", "warning", "not known"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One thing that was looked at: what was measured, or why it could not be."""

    name: str
    verdict: Verdict
    says: str

    @classmethod
    def read(cls, told: object) -> list[Line]:
        """The lines of a record, as `dataclasses.asdict` wrote them; whatever else stands there is left out."""
        records = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
        return [
            cls(name=str(one.get("name", "")), verdict=one["verdict"], says=str(one.get("says", "")))
            for one in records
            if one.get("verdict") in get_args(Verdict)
        ]


@dataclass(frozen=True, kw_only=True)
class Models:
    """What is known of student and teacher beside the row.

    Args:
        shared: leading ids that mean one token to both.
        student, teacher: ids of each; not more than `shared` where the other has them all.
        max_unshared_mass: as in the spec.
        same_prompt: whether the teacher's own chat template writes a question as the student's does; None: not known.
    """

    shared: int
    student: int
    teacher: int
    max_unshared_mass: float
    same_prompt: bool | None

    @property
    def guess(self) -> float:
        """Nats: entropy of the uniform distribution over the shared tokens, and what it gives any token as -log p."""
        return math.log(max(self.shared, 1))


def look(row: Mapping[str, float], models: Models) -> list[Line]:
    """The lines of a run's first training step; metrics that the row lacks make a line `not known`."""
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
    """The lines as text, in columns."""
    rows = [
        (line.name, line.verdict.upper() if line.verdict == "warning" else line.verdict, line.says) for line in lines
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"{name:<{widths[0]}}  {verdict:<{widths[1]}}  {says}" for name, verdict, says in rows]


def _line(name: str, measured: str, warnings: Sequence[str], *, is_known: bool) -> Line:
    verdict: Verdict = "warning" if warnings else "ok" if is_known else "not known"
    return Line(name=name, verdict=verdict, says="; ".join([*warnings, measured]))


def _told(name: str, row: Mapping[str, float], past: Past) -> tuple[list[str], bool]:
    """The monitor's fault, if it shows in this row alone, and whether the row can tell it."""
    verdict = BY_NAME[name].judge(row, past)
    return ([f"{BY_NAME[name].what} ({name})"] if verdict else []), verdict is not None


def _tokens(row: Mapping[str, float], models: Models) -> Line:
    sides = {"student": models.student, "teacher": models.teacher}
    beyond = {side: num - models.shared for side, num in sides.items() if num > models.shared}
    if not beyond:
        return _line("tokenizer", f"{models.shared} tokens, the same in both", [], is_known=True)
    found = {side: value_of(row, f"opd/unshared_mass_{side}") for side in beyond}
    parts = [f"{models.shared} tokens in both"]
    for side, mass in found.items():
        share = "an unknown share" if mass is None else f"{mass:.2g}"
        parts.append(f"the {side} has {beyond[side]} more and puts {share} of its probability on them")
    allowed = models.max_unshared_mass
    warnings = [
        f"the {side} puts more on tokens that the other lacks than opd.max_unshared_mass={allowed:g}"
        for side, mass in found.items()
        if mass is not None and mass > allowed
    ]
    return _line("tokenizer", "; ".join(parts), warnings, is_known=None not in found.values())


def _template(row: Mapping[str, float], past: Past, models: Models) -> Line:
    warnings, is_known = _told("prompt-template", row, past)
    off = value_of(row, "data/prompts_off_template")
    prompts = (
        "its header cannot be told" if off is None else f"{1 - off:.0%} of the prompts end with the student's header"
    )
    if models.same_prompt is False:
        warnings.append(
            "the teacher's own template writes a question otherwise: it reads prompts in a form that is not its own"
        )
    own = {True: "; the teacher's own writes a question alike", False: "", None: "; the teacher's own was not compared"}
    says = prompts + own[models.same_prompt]
    return _line("chat template", says, warnings, is_known=is_known and models.same_prompt is not None)


def _entropy(row: Mapping[str, float], past: Past, models: Models) -> Line:
    mean, spread = value_of(row, "opd/teacher_entropy"), value_of(row, "opd/teacher_entropy_std")
    if mean is None or spread is None:
        return _line("entropy", "was not measured", [], is_known=False)
    warnings, is_known = _told("teacher-flat", row, past)
    if not warnings and mean > UNIFORM * models.guess:
        warnings.append("the teacher knows next to nothing of the answers")
    own = value_of(row, *ENTROPY_KEYS)
    says = f"the teacher has {mean:.3g} nats a token, within {spread:.2g}; {models.guess:.3g} would be a guess"
    return _line("entropy", says + ("" if own is None else f", the student has {own:.3g}"), warnings, is_known=is_known)


def _position(row: Mapping[str, float], past: Past) -> Line:
    share, pairs = value_of(row, "opd/teacher_prefers_neighbour"), value_of(row, "opd/teacher_pairs")
    if share is None or pairs is None:
        return _line("position", "was not measured", [], is_known=False)
    warnings, is_known = _told("teacher-shifted", row, past)
    says = f"the teacher prefers a neighbour to {share:.0%} of {pairs:.0f} tokens"
    return _line("position", says if is_known else f"{says}, which are too few", warnings, is_known=is_known)


def _perplexity(row: Mapping[str, float], past: Past, models: Models) -> Line:
    surprise, own = value_of(row, "opd/teacher_surprise"), value_of(row, "opd/surprise")
    if surprise is None:
        return _line("perplexity", "was not measured", [], is_known=False)
    warnings, _ = _told("divergence-floored", row, past)
    if surprise > max(models.guess, IMPOSSIBLE):
        warnings.append("the answers are less likely to the teacher than to a guess")
    says = f"of the answers to the teacher {_exp(surprise)}; {models.shared} would be a guess"
    return _line("perplexity", says + ("" if own is None else f", to the student {_exp(own)}"), warnings, is_known=True)


def _right_answers(row: Mapping[str, float], past: Past) -> Line:
    """Whether it has something to teach, as far as the student's own answers tell; its own are not asked for."""
    warnings, _ = _told("teacher-no-better", row, past)
    divergence = value_of(row, "opd/divergence")
    if divergence is not None and divergence < SAME_MODEL:
        warnings.append(f"the teacher is the student: {divergence:.1g} nats a token lie between them")
    preference, rows = value_of(row, "opd/teacher_preference"), value_of(row, "opd/valid_rows")
    if preference is None or not rows:
        says = "it takes scores that differ, and ranks that do not share sequences, to tell which answers the teacher prefers"
        return _line("right answers", says, warnings, is_known=False)
    error = PREFERRED_Z / math.sqrt(rows)
    if preference + error < PREFERRED:
        warnings.append("the teacher does not prefer the answers that score more")
    says = f"score and the teacher's preference correlate by {preference:+.2f} ± {error:.2f} over {rows:.0f}"
    is_known = preference > error
    return _line(
        "right answers", says if is_known or warnings else f"{says}, which may be chance", warnings, is_known=is_known
    )


def _exp(nats: float) -> str:
    return f"{math.exp(min(nats, 700.0)):.3g}"  # a floored log-probability is beyond any float
