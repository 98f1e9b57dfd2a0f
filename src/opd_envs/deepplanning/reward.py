"""The benchmark's scores of a written plan as a reward."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from opd.agent.settings import CASE_ID
from opd_envs.deepplanning.database import open_database
from opd_envs.deepplanning.scoring.judge import judge_plan
from opd_envs.deepplanning.task import parse_task
from opd_envs.scoring import Result, check_made_for, folder_of


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    database_dir: str | None = None,
) -> dict[str, float | str]:
    """Score a plan by the benchmark's rules, in verl's form.

    Args:
        data_source: not read.
        solution_str: all turns as text.
        ground_truth: a query as text (`opd_envs.deepplanning.task`).
        extra_info: `case_id` and `database_id`.
        database_dir: the imported database; else `extra_info`'s, else the environment's DATABASE_DIR.

    Returns:
        `dimension_NAME`, `commonsense_score`, `personalized_score`, `composite_score`, `case_acc` and
        `delivery_rate`, with `acc` = `case_acc`; 1.0 or 0.0 for each rule and constraint.

    Raises:
        TaskError | KeyError | ManifestError: the data or the database is at fault, not the answer.
    """
    info = dict(extra_info or {})
    task = parse_task(ground_truth)
    folder = folder_of(info, database_dir)
    database = _opened(folder)
    check_made_for(info, folder, database.manifest.database_id, made_by="opd_envs.deepplanning.prepare")
    judgement = judge_plan(solution_str, task, database.in_case(str(info.get(CASE_ID))))
    verdicts = [(f"commonsense_{verdict.name}", verdict) for verdict in judgement.commonsense]
    verdicts += [(f"hard_{verdict.name}", verdict) for verdict in judgement.hard]
    shares = {f"dimension_{name}": value for name, value in judgement.dimensions.items()} | judgement.scores
    return Result(judgement.reward, bool(shares["case_acc"]), "", tuple(verdicts), shares).row(info)


_opened = lru_cache(maxsize=4)(open_database)
