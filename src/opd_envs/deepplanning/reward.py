"""The benchmark's scores of a written plan as a reward."""

from collections.abc import Mapping
from typing import Any

from opd.agent.settings import CASE_ID
from opd_envs.deepplanning.database import Database
from opd_envs.deepplanning.scoring.judge import judge_plan
from opd_envs.deepplanning.task import parse_task
from opd_envs.scoring import database_of, reward_row

MADE_BY = "opd_envs.deepplanning.prepare"


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    database_dir: str,
) -> dict[str, float | str]:
    """Score a plan by the benchmark's rules, in verl's form.

    Args:
        data_source: not read.
        solution_str: all turns as text.
        ground_truth: a query as text (`opd_envs.deepplanning.task`).
        extra_info: `case_id` and `database_id`.
        database_dir: the imported database.

    Returns:
        `dimension_NAME`, `commonsense_score`, `personalized_score`, `composite_score`, `case_acc` and
        `delivery_rate`, with `acc` = `case_acc`; 1.0 or 0.0 for each rule and constraint.

    Raises:
        TaskError | KeyError | ManifestError: the data or the database is at fault, not the answer.
    """
    info = extra_info or {}
    task = parse_task(ground_truth)
    database = database_of(info, database_dir, Database, made_by=MADE_BY)
    judgement = judge_plan(solution_str, task, database.in_case(str(info.get(CASE_ID))))
    checks = {f"commonsense_{name}": holds for name, holds in judgement.commonsense.items()}
    checks |= {f"hard_{name}": holds for name, holds in judgement.hard.items()}
    shares = {f"dimension_{name}": value for name, value in judgement.dimensions.items()} | judgement.scores
    passed = bool(shares["case_acc"])
    return reward_row(judgement.reward, checks, passed=passed, extra_info=info, shares=shares)
