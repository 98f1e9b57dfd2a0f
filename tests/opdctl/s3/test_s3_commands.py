"""The commands against a real S3 server over HTTP."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import pytest

from opd.store.remote import open_store

# The first test may have to build the server.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_collect_and_logs_read_a_run_from_s3(s3_url: str, inside: Callable, make_run: Callable) -> None:
    first = {step: {"opd/loss": float(step)} for step in (1, 2)}
    make_run("r", attempts=[first, {2: {"opd/loss": 20.0}}], url=s3_url, log="one line\n")
    open_store(s3_url).put("r/attempts/0001/driver.log", b"first attempt\n")
    done = inside("collect", "r", "--store", s3_url, "-o", "csv")
    assert done.returncode == 0, done.stderr
    assert [row["opd/loss"] for row in csv.DictReader(io.StringIO(done.stdout))] == ["1", "20"]
    assert "first attempt" in inside("logs", "r", "--store", s3_url).stdout


def test_a_wrong_secret_is_one_clear_line_without_the_secret(
    s3_url: str, inside: Callable, fresh_filesystem: Callable
) -> None:
    fresh_filesystem()
    done = inside("collect", "--store", s3_url, AWS_SECRET_ACCESS_KEY="not-the-secret")
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "check the credentials" in done.stderr
    assert "not-the-secret" not in done.stderr
