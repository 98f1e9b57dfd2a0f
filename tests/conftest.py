"""Settings of the whole suite: one thread a process, reproducible property tests."""

import os
import sys

# Before torch is imported, here and in every process a test starts: two cores, many small tensors. With more threads
# than free cores OpenMP's workers spin for each other, and a second's work takes a minute.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Colours and widths of a developer's terminal must not reach the output that tests read.
for _name in ("FORCE_COLOR", "COLUMNS"):
    os.environ.pop(_name, None)

from collections.abc import Iterator  # noqa: E402
from pathlib import Path, PurePosixPath  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from opd.runs import lease  # noqa: E402
from tests import entry_points  # noqa: E402
from tests.programs import need  # noqa: E402

entry_points.use()

TESTS = Path(__file__).parent
# Folders whose tests all have one mark. A test elsewhere names its own, and `make test` runs those without a tier's mark.
MARK_OF_FOLDER = {"fast_tier": "cluster", "e2e_cpu": "e2e", "gpu": "gpu", "vllm_cpu": "vllm", "charts": "helm"}

settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder, and tests of the S3 server, which Go builds, as part of the cluster tier."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if mark := MARK_OF_FOLDER.get(folder):
            item.add_marker(mark)
        if "s3_server" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
    items.sort(key=lambda item: item.get_closest_marker("run") is None)  # the longest file first


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs helm where there is none; with OPD_NO_SKIP it fails."""
    if item.get_closest_marker("helm"):
        need("helm")


@pytest.fixture(autouse=True)
def locks_end_with_their_test() -> Iterator[None]:
    """A run's lock ends with its process; here that would be hundreds of open files, and a soft limit of 1,024 is common."""
    before = len(lease.HELD)
    yield
    while len(lease.HELD) > before:
        os.close(lease.HELD.pop())


@pytest.fixture(autouse=True)
def import_path_is_left_as_it_was() -> Iterator[None]:
    """Check that a test leaves `sys.path` as it was: processes of a later test import from it."""
    before = [*sys.path]
    yield
    added = [PurePosixPath(path) for path in sys.path if path not in before]
    # The import of ray adds a folder of its package.
    assert [path for path in added if not path.is_relative_to(sys.prefix)] == []


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which not every environment has that runs some of these tests
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, a worker runs a file's tests one after the other, for what they share; the fast tier's share a control plane."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = PurePosixPath(nodeid.split("::", 1)[0])
            return str(path.parent if path.parent.name == "fast_tier" else path)

    return ByFile(config, log)
