"""The imported database of two invented cases a language and a level, made once."""

from pathlib import Path

import pytest
from tests.opd_envs.deepplanning.published import write_data

from opd_envs.deepplanning.__main__ import main
from opd_envs.deepplanning.parts import LEVELS


@pytest.fixture(scope="session")
def published_data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("published"), levels=LEVELS)


@pytest.fixture(scope="session")
def imported(published_data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("imported") / "database"
    assert main(["import", "--data-dir", str(published_data), "--out", str(folder)]) == 0
    return folder
