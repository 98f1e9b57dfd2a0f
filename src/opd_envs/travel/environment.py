"""The travel environment's record."""

from opd.agent import Environment
from opd_envs.travel.database import Database
from opd_envs.travel.tools import TOOLS

ENVIRONMENT = Environment(
    tools=TOOLS,
    open_database=Database,
    verify_database=Database.verify,
    reward="opd_envs.travel.reward:compute_score",
    prepare="python -m opd_envs.travel.prepare",
    toy="opd_envs.travel.toy",
)
