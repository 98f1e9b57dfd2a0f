"""Parts that the rewards share: the task of a row, the block of an answer, the task's database, the reward's row."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from opd_envs.database_folder import DatabaseFolder, ManifestError

MAX_BLOCK_CHARS = 100_000
"""A longer plan is rejected unread; an honest plan of 14 days has about 10,000 characters."""


class Record(BaseModel):
    """A part of a task: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskError(ValueError):
    """A ground truth that is no task: a fault of the data, not of an answer."""


class PlanError(ValueError):
    """A text without a plan; the message says why."""


T = TypeVar("T")
P = TypeVar("P", bound=BaseModel)
D = TypeVar("D", bound=DatabaseFolder[Any])


def task_text(task: Record) -> str:
    """Return the task as text for `reward_model.ground_truth`, without unset fields."""
    return task.model_dump_json(exclude_none=True)


def read_task(text: str, adapter: TypeAdapter[T], *, made_by: str) -> T:
    """Read a ground truth as a task of one environment.

    Raises:
        TaskError: it is none; the message names the field.
    """
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise TaskError(
            f"reward_model.ground_truth: {_first(error, 'task')}; it must be a task as {made_by} writes it"
        ) from error


def last_block(text: str, tag: str) -> str | None:
    """Return the text of the last `<tag>...</tag>`; None where none closes. Linear in the text."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, end) if end >= 0 else -1
    return None if start < 0 else text[start + len(tag) + 2 : end]


def find_plan(text: str) -> str:
    """Return the text of the last `<plan>`.

    Raises:
        PlanError: there is no block, or it is too long.
    """
    block = last_block(text, "plan")
    if block is None:
        raise PlanError("there is no <plan>...</plan>")
    if len(block) > MAX_BLOCK_CHARS:
        raise PlanError(f"the plan has {len(block)} characters, more than {MAX_BLOCK_CHARS}")
    return block


def read_plan(model: type[P], block: str | dict[str, Any]) -> P:
    """Return a plan from JSON text or from its tree.

    Raises:
        PlanError: it is no JSON, or has another form; the message names the first wrong field.
    """
    try:
        return model.model_validate_json(block) if isinstance(block, str) else model.model_validate(block)
    except ValidationError as error:
        raise PlanError(_first(error, "plan")) from error


_opened: Callable[[Any, str], Any] = lru_cache(maxsize=4)(lambda kind, folder: kind(folder))


def database_of(extra_info: Mapping[str, Any], folder: str, kind: type[D], *, made_by: str) -> D:
    """Return the database of a folder, opened once in a process, for a row whose task was made for it.

    Raises:
        ManifestError: the row's task was made for another database.
    """
    database: D = _opened(kind, folder)
    made_for, found = extra_info.get("database_id"), database.manifest.database_id
    if made_for is not None and made_for != found:
        raise ManifestError(
            f"{folder}: is database {found}, this task was made for {made_for} and may have no solution here. "
            f"Give the database that {made_by} was given, or prepare the data anew"
        )
    return database


def reward_row(
    score: float,
    checks: Mapping[str, bool],
    *,
    passed: bool,
    extra_info: Mapping[str, Any],
    pred: str = "",
    shares: Mapping[str, float] | None = None,
) -> dict[str, float | str]:
    """Return `score`, `acc`, `pred`, 1.0 or 0.0 for each check, the shares, and `gradeN` = `acc` of a grade N."""
    grade = extra_info.get("grade")
    grades = {} if grade is None else {f"grade{int(grade)}": float(passed)}
    entries = {name: float(holds) for name, holds in checks.items()}
    return {**entries, **(shares or {}), **grades, "score": score, "acc": float(passed), "pred": pred}


def _first(error: ValidationError, name: str) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or name}: {first['msg']}"
