"""Programs that tests need: a missing one skips the test by one named reason, or fails it with OPD_NO_SKIP."""

import os
import shutil

import pytest

import gotools


def need(*names: str, build: bool = False) -> None:
    """Skip or fail the test unless all programs are there; with `build`, Go builds the missing ones first."""
    try:
        for name in names:
            if name in gotools.PROGRAMS:
                (gotools.install if build else gotools.find)(name)
            elif shutil.which(name) is None:
                raise gotools.ToolError(f"{name} is not on PATH")
    except gotools.ToolError as error:
        if os.environ.get("OPD_NO_SKIP"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(f"NOT TESTED HERE: {error}")
