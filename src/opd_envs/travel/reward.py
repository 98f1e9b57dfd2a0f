"""The travel reward, used for training, validation and pass rates alike: one score and one entry per named constraint."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from opd.agent.settings import EPISODE_SEED, FINAL_TEXT
from opd_envs.scoring import Result, check_made_for, folder_of
from opd_envs.travel.answers import right_answer, says
from opd_envs.travel.constraints import judge, no_plan, satisfied_share
from opd_envs.travel.database import Database, open_database
from opd_envs.travel.itinerary import Verdict
from opd_envs.travel.plan import PlanError, find_answer, parse_plan
from opd_envs.travel.task import Question, Trip, parse_task


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    database_dir: str | None = None,
) -> dict[str, float | str]:
    """Score an answer, in verl's form.

    Args:
        data_source: not looked at: the ground truth says what is asked.
        solution_str: all turns as text; tool replies can hold no `<plan>` or `<answer>` (`opd.agent.tools.render`).
        ground_truth: a task as text (`opd_envs.travel.task`).
        extra_info: `episode_seed` lays that episode's prices over the database; `final_text`, if there, is the text of
            the last turn; `database_dir` may name the database, `database_id` says which one the task is for.
        database_dir: the database folder; else `extra_info`'s, else the environment's DATABASE_DIR.

    Returns:
        `score` in [0, 1], `acc` 1.0 where everything asked is satisfied, `pred`, and 1.0 or 0.0 for each constraint
        of this task: `commonsense_NAME`, `hard_NAME` or `question_NAME`, with the shares `commonsense` and `hard`;
        `gradeN` repeats `acc` for a task of grade N. An entry's mean over rows is the pass rate where it is asked.

    Raises:
        TaskError | ManifestError: the data or the database is at fault, not the answer.
    """
    info = dict(extra_info or {})
    task, database = parse_task(ground_truth), _database(info, database_dir)
    if isinstance(task, Question):
        return _question(solution_str, task, info, database).row(info)
    return _trip(solution_str, task, database).row(info)


def _question(text: str, task: Question, extra_info: Mapping[str, Any], database: Database) -> Result:
    final_text = extra_info.get(FINAL_TEXT)
    answer = find_answer(text, final_text=None if final_text is None else str(final_text))
    right = right_answer(task, database)
    given = Verdict("answer_given", () if answer is not None else ("there is no answer",))
    is_right = answer is not None and says(answer, right)
    correct = Verdict("answer_right", () if is_right else (f"the answer is {right}",))
    verdicts = tuple((f"question_{verdict.name}", verdict) for verdict in (given, correct))
    return Result(float(is_right), is_right, answer or "", verdicts, {})


def _trip(text: str, task: Trip, database: Database) -> Result:
    try:
        plan = parse_plan(text)
        reason = None
        judgement = judge(plan, task, database)
    except PlanError as error:
        reason = str(error)
        judgement = no_plan(task, reason)
    given = Verdict("plan_given", () if reason is None else (reason,))
    verdicts = [("commonsense_plan_given", given)]
    verdicts += [(f"commonsense_{verdict.name}", verdict) for verdict in judgement.commonsense]
    verdicts += [(f"hard_{verdict.name}", verdict) for verdict in judgement.hard]
    shares = {"commonsense": satisfied_share(judgement.commonsense)}
    if judgement.hard:
        shares["hard"] = satisfied_share(judgement.hard)
    # No maj@k over plans: two plans are never the same text.
    return Result(judgement.score, judgement.passed, "", tuple(verdicts), shares)


def _database(info: Mapping[str, Any], database_dir: str | None) -> Database:
    folder = folder_of(info, database_dir)
    database = _opened(folder)
    check_made_for(info, folder, database.manifest.database_id, made_by="opd_envs.travel.prepare")
    seed = info.get(EPISODE_SEED)
    return database.in_episode(None if seed is None else int(seed))


_opened: Callable[[str], Database] = lru_cache(maxsize=4)(open_database)
