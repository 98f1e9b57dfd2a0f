"""Changes to other libraries: every name of verl, Ray, torch or vLLM that this project replaces at run time.

Each patch names the version it was written for, and has a test that fails once the library no longer needs it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: object, **values: Any) -> Iterator[None]:
    """Give an object other attributes while the block runs."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
