"""Shared by the spec's tests: the smallest valid tree of each kind."""

import copy

import pytest
from tests.minimal import MINIMAL


@pytest.fixture
def minimal():
    """A fresh copy of the smallest valid tree of a kind: `minimal("opd")`."""
    return lambda kind: copy.deepcopy(MINIMAL[kind])
