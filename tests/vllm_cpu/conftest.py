"""The engines of this folder are vLLM's, on a CPU: `make test-vllm` has an environment with its build for CPUs."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    missing = pytest.mark.skip(
        reason="NOT TESTED HERE: vLLM's build for CPUs is in the environment of `make test-vllm`"
    )
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))
            if not _has_build():
                item.add_marker(missing)


def _has_build() -> bool:
    try:
        return version("vllm").endswith("+cpu")  # as site/sitecustomize.py says
    except PackageNotFoundError:
        return False
