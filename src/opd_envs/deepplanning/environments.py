"""DeepPlanning's environments: its travel tools in English and in Chinese."""

from functools import partial

from opd.agent import Environment
from opd_envs import Language
from opd_envs.database_folder import read_manifest
from opd_envs.deepplanning import database, tools


def _travel(language: Language) -> Environment:
    return Environment(
        tools=tools.tools_in(language),
        open_database=database.open_database,
        verify_database=partial(read_manifest, model=database.Manifest, compare_hashes=True),
        needs_case=True,
        reward="opd_envs.deepplanning.reward:compute_score",
        prepare="python -m opd_envs.deepplanning.prepare",
    )


TRAVEL_EN, TRAVEL_ZH = _travel("en"), _travel("zh")
