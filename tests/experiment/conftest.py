"""Shared by the spec's tests: the smallest valid tree of each kind."""

from pathlib import Path

import pytest
from tests.minimal import MINIMAL

EXAMPLES = sorted((Path(__file__).parent / "examples").glob("*.yaml"))


@pytest.fixture
def minimal():
    """A fresh copy of the smallest valid tree of a kind: `minimal("opd")`."""
    import copy

    return lambda kind: copy.deepcopy(MINIMAL[kind])
