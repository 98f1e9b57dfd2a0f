"""Charts are tested with real programs; without them the tests fail and say what to do."""

import pytest

from gotools import GROUPS, ToolError, find


@pytest.fixture(scope="session", autouse=True)
def _programs():
    for name in GROUPS["charts"]:
        try:
            find(name)
        except ToolError as error:
            pytest.fail(str(error), pytrace=False)
