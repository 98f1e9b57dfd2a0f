"""The imported database of two invented cases a language, made once."""

from pathlib import Path

import pytest
from tests.opd_envs.deepplanning.published import write_data

from opd_envs.deepplanning.make_database import main


@pytest.fixture(scope="session")
def published_data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="session")
def imported(published_data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("imported") / "database"
    main(["--data-dir", str(published_data), "--out", str(folder)])
    return folder
