"""Checkpoints that all conversion tests share, saved once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.convert.checkpoints import Case, base_model, save_all, seal


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of every case of `checkpoints.CASES`."""
    folder = tmp_path_factory.mktemp("saved")
    save_all(folder)
    return folder


@pytest.fixture
def sealed(saved: Path, tmp_path: Path) -> Callable[..., Path]:
    """A sealed run directory around one case; returns the step's folder."""

    def make(case: Case, **options: str) -> Path:
        base = str(base_model(saved, case.tied))
        return seal(saved / case.name / "actor", tmp_path / "my-run", base=base, world_size=case.world_size, **options)

    return make
