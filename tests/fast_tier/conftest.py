"""The fixtures `tier` and `kueue_tier`, one each for the whole session; each test of this folder is in the cluster tier."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.cluster.kueue import Kueue
from tests.fast_tier.tier import FastTier
from tests.programs import need

import gotools

_TEST_TIMEOUT_S = 1200
_LOGS = pytest.StashKey[list[Path]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit this folder's tests; the limit leaves out the fixture, which may have to build first."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TEST_TIMEOUT_S, func_only=True))


@pytest.fixture(scope="session")
def parts() -> None:
    """The programs of a control plane; they are built first where they are missing (minutes)."""
    need(*gotools.GROUPS["fast-tier"], build=True)


@pytest.fixture(scope="session")
def tier(parts: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[FastTier]:
    """A running fast tier."""
    with _running(tmp_path_factory.mktemp("fast-tier"), request.config) as found:
        yield found


@pytest.fixture(scope="session")
def kueue_tier(
    parts: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[FastTier]:
    """A tier of its own with Kueue's manager, whose webhooks answer for every RayJob of a cluster."""
    with _running(tmp_path_factory.mktemp("fast-tier-kueue"), request.config) as found:
        Kueue(found.plane).start()
        yield found


@contextmanager
def _running(folder: Path, config: pytest.Config) -> Iterator[FastTier]:
    found = FastTier(folder)
    config.stash.setdefault(_LOGS, []).append(found.logs)
    try:
        found.start()
        yield found
        found.processes.check()  # a part that died while the tests passed is a finding
    finally:
        found.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test says where the parts' logs are."""
    report = yield
    if report.failed and (logs := item.config.stash.get(_LOGS, None)):
        report.sections.append(("logs of the fast tier's parts", "\n".join(map(str, logs))))
    return report
