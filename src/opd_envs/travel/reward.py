"""The travel reward of training, validation and pass rates: one score, and an entry for each named constraint."""

from collections.abc import Mapping
from typing import Any

from opd.agent.settings import EPISODE_SEED, FINAL_TEXT
from opd_envs.scoring import PlanError, database_of, reward_row
from opd_envs.travel.answers import find_answer, right_answer, says
from opd_envs.travel.constraints import judge, no_plan, share
from opd_envs.travel.database import Database
from opd_envs.travel.plan import parse_plan
from opd_envs.travel.task import Question, Trip, parse_task

MADE_BY = "opd_envs.travel.prepare"


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    database_dir: str,
) -> dict[str, float | str]:
    """Score an answer, in verl's form.

    Args:
        data_source: not read: the ground truth says the task.
        solution_str: all turns as text; tool replies can hold no `<plan>` or `<answer>` (`opd.agent.tools.render`).
        ground_truth: a task as text (`opd_envs.travel.task`).
        extra_info: `episode_seed` names the episode, `final_text` is the last turn, `database_id` the task's database.
        database_dir: the database folder.

    Returns:
        `score` in [0, 1], `acc`, `pred`, and 1.0 or 0.0 for each constraint of the task: `commonsense_NAME`, `hard_NAME`
        or `question_NAME`, with the shares `commonsense` and `hard`. An entry's mean over rows is its pass rate.

    Raises:
        TaskError | ManifestError | KeyError: the data or the database is at fault, not the answer.
    """
    info = extra_info or {}
    task = parse_task(ground_truth)
    stored, seed = database_of(info, database_dir, Database, made_by=MADE_BY), info.get(EPISODE_SEED)
    database = stored.in_episode(None if seed is None else int(seed))
    score = _score_answer if isinstance(task, Question) else _score_plan
    return score(solution_str, task, info, database)  # type: ignore[arg-type]  # chosen by the task's own type


def _score_answer(text: str, task: Question, info: Mapping[str, Any], database: Database) -> dict[str, float | str]:
    answer = find_answer(text, final_text=info.get(FINAL_TEXT))
    is_right = answer is not None and says(answer, right_answer(task, database))
    checks = {"question_answer_given": answer is not None, "question_answer_right": is_right}
    return reward_row(float(is_right), checks, passed=is_right, extra_info=info, pred=answer or "")


def _score_plan(text: str, task: Trip, info: Mapping[str, Any], database: Database) -> dict[str, float | str]:
    try:
        judgement, given = judge(parse_plan(text), task, database), True
    except PlanError:
        judgement, given = no_plan(task), False
    parts = judgement._asdict().items()
    checks = {f"{part}_{name}": holds for part, found in parts for name, holds in found.items()}
    shares = {part: share(found.values()) for part, found in parts if found}
    checks = {"commonsense_plan_given": given, **checks}
    # `pred` stays empty, so there is no maj@k over plans: two plans are never the same text.
    return reward_row(judgement.score, checks, passed=judgement.passed, extra_info=info, shares=shares)
