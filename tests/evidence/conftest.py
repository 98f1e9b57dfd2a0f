"""Fixture: untaught models of the study."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import save_file
from tests.evidence import models


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Teacher and start of seed 1 as they are before their lessons."""
    out = tmp_path_factory.mktemp("models")
    shapes = (
        ("teacher", models.TEACHER_RECIPE, 0),
        ("start-1", models.STUDENT_RECIPE, 1),
    )
    for name, recipe, seed in shapes:
        model = models.build_model(recipe, models.tokenizer(), seed=seed)
        save_file(model.state_dict(), models.path_of(out, name))
    return out
