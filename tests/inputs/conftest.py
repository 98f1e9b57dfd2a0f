"""What tests share that begin a run in their own process."""

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest


@pytest.fixture
def own_environment() -> Iterator[None]:
    """What `opd.trainer.entry.run` sets for its run (of W&B, of the CPU's engines, ...) no later test and none of its processes get."""
    with patch.dict(os.environ):
        yield
