"""The commands against a real S3 server over HTTP."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import pytest

from opd.store.remote import open_store

# The first test may have to build the server.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_collect_and_logs_read_a_run_from_s3(
    s3_url: str, s3_environment: dict, call: Callable, make_run: Callable
) -> None:
    first = {step: {"opd/loss": float(step)} for step in (1, 2)}
    make_run("r", attempts=[first, {2: {"opd/loss": 20.0}}], url=s3_url, log="one line\n")
    open_store(s3_url).put("r/attempts/0001/driver.log", b"first attempt\n")
    done = call("collect", "r", "--store", s3_url, "-o", "csv", **s3_environment)
    assert done.returncode == 0, done.stderr
    assert [row["opd/loss"] for row in csv.DictReader(io.StringIO(done.stdout))] == ["1", "20"]
    assert "first attempt" in call("logs", "r", "--store", s3_url, **s3_environment).stdout


def test_a_wrong_secret_is_one_clear_line_without_the_secret(s3_url: str, s3_environment: dict, call: Callable) -> None:
    wrong = {**s3_environment, "AWS_SECRET_ACCESS_KEY": "not-the-secret"}
    done = call("collect", "--store", s3_url, **wrong)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "check the credentials" in done.stderr
    assert "not-the-secret" not in done.stderr
