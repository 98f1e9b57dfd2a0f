"""Shared by the spec's tests: the smallest valid tree of each kind."""

from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent / "examples").glob("*.yaml"))

MINIMAL = {
    "grpo": {"kind": "grpo", "model": {"path": "m"}},
    "opd": {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}},
    "opd-agent": {
        "kind": "opd-agent",
        "model": {"path": "m"},
        "teacher": {"path": "t"},
        "agent": {"database_dir": "d"},
    },
    "eval": {"kind": "eval", "model": {"path": "m"}},
    "convert": {"kind": "convert", "convert": {"checkpoint": "c"}},
}


@pytest.fixture
def minimal():
    """A fresh copy of the smallest valid tree of a kind: `minimal("opd")`."""
    import copy

    return lambda kind: copy.deepcopy(MINIMAL[kind])
