"""`status` and `logs -f` on live runs."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from opd.errors import StoreUnavailable
from opd.runs.progress import Standing
from opd.runs.run import Run
from opd.store.base import RetryPolicy
from opd.store.local import LocalStore
from opd.store.remote import open_store
from opdctl.logs.store import LogReader
from opdctl.runs.listing import Listing


@pytest.fixture
def live_run(tmp_path: Path, store: Path) -> Iterator[Run]:
    """A run that is owned by this process, and open."""
    run = Run.open(run_id="live", local_root=tmp_path / "local", spec={"kind": "opd", "trainer": {"total_steps": 10}},
                   spec_hash="h", store_url=str(store), tee=False, policy=RetryPolicy(max_elapsed_s=5))  # fmt: skip
    with run:
        yield run


def test_status_says_for_how_long_a_run_has_made_no_progress(
    inside: Callable, live_run: Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent() -> Standing:
        return Standing(phase="rollout", step=7, progress_at_s=time.monotonic() - 2 * 3600, limit_s=3 * 3600.0)

    monkeypatch.setattr("opd.runs.run.PROGRESS", SimpleNamespace(read=silent))
    live_run._renew()
    text = inside("status", "live", "--store", store).stdout
    assert "no progress for 2 h" in text
    assert "(rollout at step 7); ended after 3 h" in text


def test_status_and_list_of_a_pipeline_name_the_stage_that_runs_and_its_step(
    inside: Callable, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = Standing(phase="rollout", step=7, progress_at_s=time.monotonic(), limit_s=None, stage="distil (2 of 3)")
    for module in ("run", "summary"):
        monkeypatch.setattr(f"opd.runs.{module}.PROGRESS", SimpleNamespace(read=lambda: standing))
    run = Run.open(run_id="bridge", local_root=tmp_path / "local", spec={"kind": "pipeline"}, spec_hash="h",
                   store_url=str(store), tee=False)  # fmt: skip
    with run:
        run._renew()
        assert "distil (2 of 3): rollout at step 7" in inside("status", "bridge", "--store", store).stdout
        assert "distil (2 of 3), step 7" in inside("list", "--store", store).stdout


def test_a_followed_log_has_no_gap_and_no_repeat_over_parts_and_attempts(store: Path, capsys: pytest.CaptureFixture) -> None:  # fmt: skip
    root = store / "r"
    reader = LogReader(open_store(root), poll_s=0.0)
    # (file, what it holds then): a half line, its rest, a second part, a second attempt, the end.
    history = [
        ("attempts/0001/driver.log", "one\ntw"),
        ("attempts/0001/driver.log", "one\ntwo\n"),
        ("attempts/0001/driver.log", "one\ntwo\nthree\n"),
        ("attempts/0001/driver.log.000001", "four\nfi"),
        ("attempts/0002/driver.log", "six\n"),
        ("attempts/0001/driver.log.000001", "four\nfive\n"),
        ("attempts/0002/driver.log", "six\nseven"),
    ]
    printed: list[str] = []
    for number, (name, text) in enumerate(history):
        reader.store.put(name, text.encode())
        reader._print(Listing(reader.store), is_final=number == len(history) - 1)
        printed += capsys.readouterr().out.splitlines()
    words = [line for line in printed if not line.startswith("=====")]
    assert words == ["one", "two", "three", "four", "fi", "six", "ve", "seven"]


def test_a_store_that_goes_away_half_way_through_a_look_loses_no_line(
    store: Path, capsys: pytest.CaptureFixture
) -> None:
    class Flaky(LocalStore):
        is_away = True

        def get(self, key: str) -> bytes:
            if self.is_away and key.endswith(("000001", "0002/driver.log")):
                raise StoreUnavailable("away")
            return super().get(key)

    flaky = Flaky(store / "r")
    for name, text in (
        ("0001/driver.log", b"one\n"),
        ("0001/driver.log.000001", b"two\n"),
        ("0002/driver.log", b"three\n"),
    ):
        flaky.put(f"attempts/{name}", text)
    reader = LogReader(flaky)
    with pytest.raises(StoreUnavailable):
        reader._print(Listing(flaky), is_final=False)
    flaky.is_away = False
    reader._print(Listing(flaky), is_final=True)
    words = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("=====")]
    assert words == ["one", "two", "three"]


def test_a_log_says_how_its_attempt_ended_or_that_it_goes_on(
    inside: Callable, make_run: Callable, live_run: Run, store: Path
) -> None:
    make_run("r", attempts=[{1: {"opd/loss": 2.0}}, {2: {"opd/loss": 1.0}}], log="a line\n", result={"steps": 2})
    words = ("--store", store)
    whole = inside("logs", "r", *words)
    assert whole.stdout.splitlines()[0] == "===== attempt 1 ====="
    assert whole.stderr == "attempt 2 ended: finished\n"
    assert "attempt 1 is running: its last sign of life came" in inside("logs", "live", *words).stderr
