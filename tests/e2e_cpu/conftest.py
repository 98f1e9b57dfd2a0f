"""Marks the end-to-end runs and, with `--results FILE`, writes what they did as a table."""

from importlib.metadata import version
from pathlib import Path

import pytest
from tests.e2e_cpu.runs import TIMEOUT_S
from tests.results import write_results

HEAD = """# The last full matrix of end-to-end runs on a CPU

Written by `make e2e-cpu`; each row is a test that starts `python -m opd.launch` as a user does. Packages: {}."""
_reports: list[pytest.TestReport] = []


def pytest_addoption(parser):
    parser.addoption("--results", type=Path, default=None, help="write a table of the end-to-end runs to this file")


def pytest_collection_modifyitems(items):
    for item in items:
        if "e2e_cpu" in item.path.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(5 * TIMEOUT_S))  # up to four runs


def pytest_runtest_logreport(report):
    if report.when == "call" and "e2e" in report.keywords:
        _reports.append(report)


def pytest_sessionfinish(session):
    target = session.config.getoption("--results", None)
    is_worker = hasattr(session.config, "workerinput")  # of pytest-xdist, which has a part of them
    if target is None or not _reports or is_worker:
        return
    packages = ", ".join(f"{name} {version(name)}" for name in ("verl", "torch", "transformers", "ray"))
    rows = []
    for report in _reports:
        file, name = report.nodeid.split("::", 1)
        subject, name = (text.removeprefix("test_").replace("_", " ") for text in (Path(file).stem, name))
        rows.append((f"{subject}: {name}", report.outcome, f"{report.duration:.0f}"))
    write_results(target, HEAD.format(packages), ("run", "outcome", "seconds"), rows)
