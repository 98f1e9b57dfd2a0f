"""A small tool database for every test of the environment, made once."""

from pathlib import Path

import pytest

from opd_envs.travel.database import Database
from opd_envs.travel.make_database import write_database

SEED, NUM_CITIES = 7, 30


@pytest.fixture(scope="session")
def database_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("agent") / "database"
    write_database(folder, seed=SEED, num_cities=NUM_CITIES)
    return folder


@pytest.fixture
def database(database_dir) -> Database:
    database = Database(database_dir)
    yield database
    database.close()
