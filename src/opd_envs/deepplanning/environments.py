"""DeepPlanning's environments: its travel tools in English and in Chinese."""

from opd.agent import Environment
from opd_envs import Language
from opd_envs.deepplanning.database import Database
from opd_envs.deepplanning.tools import tools_in


def _travel(language: Language) -> Environment:
    return Environment(
        tools=tools_in(language),
        open_database=Database,
        verify_database=Database.verify,
        needs_case=True,
        reward="opd_envs.deepplanning.reward:compute_score",
        prepare="python -m opd_envs.deepplanning.prepare",
    )


TRAVEL_EN, TRAVEL_ZH = _travel("en"), _travel("zh")
