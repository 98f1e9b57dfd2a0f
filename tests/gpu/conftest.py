"""Fixtures of this folder."""

from collections.abc import Iterator

import pytest
from torch import distributed


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone, over NCCL."""
    distributed.init_process_group("nccl", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()
