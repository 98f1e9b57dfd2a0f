"""Fixtures of tests that begin a run in their own process."""

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest


@pytest.fixture
def own_environment() -> Iterator[None]:
    """Keep what `opd.trainer.entry.run` sets for its run (of W&B, of the CPU's engines, ...) from later tests."""
    with patch.dict(os.environ):
        yield
