"""Which DAPO problems are fit to train on: every one that is dropped is counted under its reason."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from opd.data.math_sources import Problem

DropReason = Literal[
    "empty_problem", "empty_answer", "conflicting_answers", "duplicate_problem", "benchmark_problem", "prompt_too_long"
]


class Filtered(NamedTuple):
    """What is kept, in its order, and what was dropped why."""

    kept: list[Problem]
    dropped: Counter[str]
    """By `DropReason`."""


def normalised(question: str) -> str:
    """A question's identity: its text up to Unicode form, case and white space."""
    return " ".join(unicodedata.normalize("NFKC", question).casefold().split())


def filter_problems(
    problems: Sequence[Problem],
    *,
    benchmark_questions: Iterable[str] = (),
    is_too_long: Callable[[Problem], bool] | None = None,
    track: Callable[[Sequence[Problem]], Iterable[Problem]] = iter,
) -> Filtered:
    """Drops what teaches nothing or what validation must not have seen; the first rule that applies is counted.

    Args:
        problems: in the order of the raw file.
        benchmark_questions: questions of the validation sets, which must not be trained on.
        is_too_long: says of a problem that its prompt exceeds the length limit.
        track: passes the problems on while it shows progress.
    """
    benchmark = {normalised(question) for question in benchmark_questions}
    answers: dict[str, set[str]] = {}
    for problem in problems:
        if problem.answer:
            answers.setdefault(normalised(problem.question), set()).add(problem.answer)
    kept: list[Problem] = []
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    for problem in track(problems):
        identity = normalised(problem.question)
        reason = _drop_reason(problem, identity, answers, seen, benchmark)
        if reason is None and is_too_long is not None and is_too_long(problem):
            reason = "prompt_too_long"
        if reason is None:
            kept.append(problem)
        else:
            dropped[reason] += 1
        seen.add(identity)
    return Filtered(kept, dropped)


def _drop_reason(
    problem: Problem, identity: str, answers: dict[str, set[str]], seen: set[str], benchmark: set[str]
) -> DropReason | None:
    if not identity:
        return "empty_problem"
    if not problem.answer:
        return "empty_answer"
    if len(answers[identity]) > 1:
        return "conflicting_answers"
    if identity in seen:
        return "duplicate_problem"
    if identity in benchmark:
        return "benchmark_problem"
    return None
