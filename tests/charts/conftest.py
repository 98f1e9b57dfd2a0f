"""Charts are tested with real programs; without them the tests fail and say what to do."""

import pytest

from gotools import ToolError, find


@pytest.fixture(scope="session", autouse=True)
def _programs():
    for name in ("helm", "kubeconform"):
        try:
            find(name)
        except ToolError as error:
            pytest.fail(str(error), pytrace=False)
