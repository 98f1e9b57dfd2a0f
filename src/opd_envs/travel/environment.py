"""The travel environment's record."""

from functools import partial

from opd.agent import Environment
from opd_envs.database_folder import read_manifest
from opd_envs.travel.database import Manifest, open_database
from opd_envs.travel.tools import TOOLS

ENVIRONMENT = Environment(
    tools=TOOLS,
    open_database=open_database,
    verify_database=partial(read_manifest, model=Manifest, compare_hashes=True),
    reward="opd_envs.travel.reward:compute_score",
    prepare="python -m opd_envs.travel.prepare",
    toy="opd_envs.travel.toy",
)
