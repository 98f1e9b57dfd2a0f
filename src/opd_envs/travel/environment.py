"""The travel environment's record."""

from opd.agent import Environment
from opd_envs.travel.database import open_database, verify_folder
from opd_envs.travel.tools import TOOLS

ENVIRONMENT = Environment(
    tools=TOOLS,
    open_database=open_database,
    verify_database=verify_folder,
    reward="opd_envs.travel.reward:compute_score",
    prepare="python -m opd_envs.travel.prepare",
    toy="opd_envs.travel.toy",
)
