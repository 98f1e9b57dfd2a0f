"""DeepPlanning's environments: travel and shopping, each with its tools in English and in Chinese."""

from opd.agent import Environment
from opd_envs.deepplanning import database, tools
from opd_envs.deepplanning.shopping import catalog
from opd_envs.deepplanning.shopping import tools as shopping
from opd_envs.travel.entries import Language

_PREPARE = "python -m opd_envs.deepplanning.prepare"
_REWARD = "opd_envs.deepplanning.reward:compute_score"


def _travel(language: Language) -> Environment:
    return Environment(
        tools=tools.tools_in(language),
        open_database=database.open_database,
        verify_database=database.verify_database,
        needs_case=True,
        reward=_REWARD,
        prepare=_PREPARE,
    )


def _shopping(language: Language) -> Environment:
    return Environment(
        tools=shopping.tools_in(language),
        open_database=catalog.open_database,
        verify_database=database.verify_database,
        needs_case=True,
        keeps_state=True,
        reward=_REWARD,
        prepare=_PREPARE,
    )


TRAVEL_EN, TRAVEL_ZH = _travel("en"), _travel("zh")
SHOPPING_EN, SHOPPING_ZH = _shopping("en"), _shopping("zh")
