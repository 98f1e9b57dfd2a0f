"""The agent's reward, used for training, validation and pass rates alike: one score and one entry per named constraint."""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, assert_never

from opd.agent.dialogue import ANSWERED
from opd.agent.environment import CASE_ID
from opd.agent.settings import ENDING, FINAL_TEXT, TOOL_STATE
from opd.envs.database_folder import ManifestError
from opd.envs.deepplanning.database import Case
from opd.envs.deepplanning.database import open_database as open_benchmark
from opd.envs.deepplanning.scoring.judge import Judgement, judge_plan
from opd.envs.deepplanning.shopping.cart import from_state
from opd.envs.deepplanning.shopping.catalog import first_cart
from opd.envs.deepplanning.shopping.score import judge_filled_cart
from opd.envs.travel.answers import right_answer, says
from opd.envs.travel.constraints import judge, no_plan, satisfied_share
from opd.envs.travel.database import Database, open_database
from opd.envs.travel.itinerary import Verdict
from opd.envs.travel.plan import PlanError, find_answer, parse_plan
from opd.envs.travel.task import BenchmarkCart, BenchmarkTrip, Question, Task, Trip, parse_task

DATABASE_VARIABLE = "DATABASE_DIR"


class Result(NamedTuple):
    """What an answer scored and why: `compute_score` with the reasons, for a viewer."""

    score: float
    passed: bool
    pred: str
    verdicts: tuple[tuple[str, Verdict], ...]
    """(name of the entry in the breakdown, verdict)."""
    shares: dict[str, float]
    """`commonsense` and `hard`: the satisfied share of each; of a benchmark's trip its own scores."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    database_dir: str | None = None,
) -> dict[str, float | str]:
    """verl's reward function, for the killable scorer pool.

    Args:
        data_source: not looked at: the ground truth says what is asked.
        solution_str: all turns as text; tool replies can hold no `<plan>` or `<answer>` (`tools.registry.render`).
        ground_truth: a task as text (`opd.envs.travel.task`).
        extra_info: `episode_seed` lays that episode's prices over the database; `final_text`, if there, is the
            text of the last turn, `tool_state` the cart that tools filled, `ending` why it ended; `database_dir` may name the database, `database_id` says which one the task is for.
        database_dir: the database folder; else `extra_info`'s, else the environment's DATABASE_DIR.

    Returns:
        `score` in [0, 1], `acc` 1.0 where everything asked is satisfied, `pred`, and 1.0 or 0.0 for each constraint
        of this task: `commonsense_NAME`, `hard_NAME` or `question_NAME`, with the shares `commonsense` and `hard`;
        `gradeN` repeats `acc` for a task of grade N. A query of DeepPlanning over its own database gives the benchmark's
        numbers: `dimension_NAME`, `commonsense_score`, `personalized_score`, `composite_score`, `case_acc` and
        `delivery_rate`, with `acc` = `case_acc`; a shopping query `case_score`, `match_score`, `coupon_score`,
        `matched_count`, `expected_count`, `extra_products_count` and `incomplete`, with `acc` = `case_score`. An entry's mean over rows is the pass rate where it is asked.

    Raises:
        TaskError | KeyError | ManifestError: the data or the database is at fault, not the answer.
    """
    task = parse_task(ground_truth)
    result = score(solution_str, task, dict(extra_info or {}), database_dir=database_dir)
    entries = {name: float(verdict.satisfied) for name, verdict in result.verdicts}
    acc = float(result.passed)
    grade = (extra_info or {}).get("grade")
    if grade is not None:
        entries[f"grade{int(grade)}"] = acc
    return {**entries, **result.shares, "score": result.score, "acc": acc, "pred": result.pred}


def score(
    text: str,
    task: Task,
    extra_info: Mapping[str, Any],
    *,
    database_dir: str | None = None,
) -> Result:
    """`compute_score` with the reasons."""
    if isinstance(task, Question):
        return _question(text, task, extra_info, _database(extra_info, database_dir))
    if isinstance(task, Trip):
        return _trip(text, task, _database(extra_info, database_dir))
    if isinstance(task, BenchmarkTrip):
        case = _benchmark_case(extra_info, database_dir)
        return _benchmark_plan(judge_plan(text, task, task.facts, case))
    if isinstance(task, BenchmarkCart):
        return _benchmark_cart(task, extra_info, database_dir)
    assert_never(task)


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


def _benchmark_plan(judgement: Judgement) -> Result:
    verdicts = [(f"commonsense_{verdict.name}", verdict) for verdict in judgement.commonsense]
    verdicts += [(f"hard_{verdict.name}", verdict) for verdict in judgement.hard]
    shares = {f"dimension_{name}": value for name, value in judgement.dimensions.items()} | judgement.scores
    return Result(judgement.reward, bool(shares["case_acc"]), "", tuple(verdicts), shares)


def _benchmark_cart(task: BenchmarkCart, extra_info: Mapping[str, Any], database_dir: str | None) -> Result:
    case = _benchmark_case(extra_info, database_dir)
    state = extra_info.get(TOOL_STATE)
    ending = extra_info.get(ENDING)
    judgement = judge_filled_cart(first_cart(case) if state is None else from_state(str(state)), task)
    verdicts = tuple((f"hard_{verdict.name}", verdict) for verdict in judgement.verdicts)
    shares = judgement.scores | {"incomplete": float(ending not in (None, ANSWERED))}
    return Result(judgement.reward, bool(shares["case_score"]), "", verdicts, shares)


def _database(extra_info: Mapping[str, Any], database_dir: str | None) -> Database:
    folder = _folder(extra_info, database_dir)
    database = _opened(folder)
    _check_made_for(extra_info, folder, database.manifest.database_id)
    seed = extra_info.get("episode_seed")
    return database.in_episode(None if seed is None else int(seed))


def _benchmark_case(extra_info: Mapping[str, Any], database_dir: str | None) -> Case:
    folder = _folder(extra_info, database_dir)
    database = _opened_benchmark(folder)
    _check_made_for(extra_info, folder, database.manifest.database_id)
    return database.in_case(str(extra_info.get(CASE_ID)))


def _folder(extra_info: Mapping[str, Any], database_dir: str | None) -> str:
    folder = database_dir or extra_info.get("database_dir") or os.environ.get(DATABASE_VARIABLE)
    if not folder:
        raise ManifestError(
            f"reward agent_plan has no database: pass database_dir (agent.database_dir) or set {DATABASE_VARIABLE}"
        )
    return str(folder)


def _check_made_for(extra_info: Mapping[str, Any], folder: str, found: str) -> None:
    made_for = extra_info.get("database_id")
    if made_for is not None and made_for != found:
        raise ManifestError(
            f"{folder}: is database {found}, this task was made for {made_for} and may have no solution here; "
            "give the database that opd.data.prepare_agent_data was given, or prepare the data anew"
        )


_opened: Callable[[str], Database] = lru_cache(maxsize=4)(open_database)
_opened_benchmark = lru_cache(maxsize=4)(open_benchmark)
