"""The benchmark's scores as a reward: a written plan, or a cart that the tools filled."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from opd.agent.dialogue import ANSWERED
from opd.agent.settings import CASE_ID, ENDING, TOOL_STATE
from opd_envs.deepplanning.database import Case, open_database
from opd_envs.deepplanning.scoring.judge import judge_plan
from opd_envs.deepplanning.shopping.cart import from_state
from opd_envs.deepplanning.shopping.catalog import first_cart
from opd_envs.deepplanning.shopping.score import judge_filled_cart
from opd_envs.deepplanning.task import BenchmarkCart, BenchmarkTrip, parse_task
from opd_envs.scoring import Result, check_made_for, folder_of


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    database_dir: str | None = None,
) -> dict[str, float | str]:
    """Score an answer by the benchmark's rules, in verl's form.

    Args:
        data_source: not looked at.
        solution_str: all turns as text.
        ground_truth: a query as text (`opd_envs.deepplanning.task`).
        extra_info: `case_id` and `database_id`; of shopping `tool_state`, the cart, and `ending`.
        database_dir: the imported database; else `extra_info`'s, else the environment's DATABASE_DIR.

    Returns:
        Of a trip `dimension_NAME`, `commonsense_score`, `personalized_score`, `composite_score`, `case_acc` and
        `delivery_rate`, with `acc` = `case_acc`; of a cart `case_score`, `match_score`, `coupon_score`,
        `matched_count`, `expected_count`, `extra_products_count` and `incomplete`, with `acc` = `case_score`.

    Raises:
        TaskError | KeyError | ManifestError: the data or the database is at fault, not the answer.
    """
    info = dict(extra_info or {})
    task = parse_task(ground_truth)
    case = _case(info, database_dir)
    result = _plan(solution_str, task, case) if isinstance(task, BenchmarkTrip) else _cart(task, info, case)
    return result.row(info)


def _plan(text: str, task: BenchmarkTrip, case: Case) -> Result:
    judgement = judge_plan(text, task, task.facts, case)
    verdicts = [(f"commonsense_{verdict.name}", verdict) for verdict in judgement.commonsense]
    verdicts += [(f"hard_{verdict.name}", verdict) for verdict in judgement.hard]
    shares = {f"dimension_{name}": value for name, value in judgement.dimensions.items()} | judgement.scores
    return Result(judgement.reward, bool(shares["case_acc"]), "", tuple(verdicts), shares)


def _cart(task: BenchmarkCart, info: Mapping[str, Any], case: Case) -> Result:
    state, ending = info.get(TOOL_STATE), info.get(ENDING)
    judgement = judge_filled_cart(first_cart(case) if state is None else from_state(str(state)), task)
    verdicts = tuple((f"hard_{verdict.name}", verdict) for verdict in judgement.verdicts)
    shares = judgement.scores | {"incomplete": float(ending not in (None, ANSWERED))}
    return Result(judgement.reward, bool(shares["case_score"]), "", verdicts, shares)


def _case(info: Mapping[str, Any], database_dir: str | None) -> Case:
    folder = folder_of(info, database_dir)
    database = _opened(folder)
    check_made_for(info, folder, database.manifest.database_id, made_by="opd_envs.deepplanning.prepare")
    return database.in_case(str(info.get(CASE_ID)))


_opened = lru_cache(maxsize=4)(open_database)
