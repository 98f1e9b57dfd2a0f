"""The commands on a real local store, called as a person calls them."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from opd.runs.metrics import merge_attempts, parse_metrics
from opdctl.runs.metrics import read_metrics


def test_collect_writes_every_run_of_a_store_into_one_parquet_file(inside: Callable, make_run: Callable, store: Path, tmp_path: Path) -> None:  # fmt: skip
    make_run("a", attempts=[{1: {"opd/loss": 1.0}}])
    make_run("b", attempts=[{1: {"actor/pg_loss": 2.0}, 2: {"actor/pg_loss": 3.0}}])
    done = inside("collect", "--store", store, "-f", "all.parquet")  # the format is what the name ends in
    assert done.returncode == 0, done.stderr
    assert "wrote the file all.parquet" in done.stderr
    table = pq.read_table(tmp_path / "all.parquet").to_pydict()
    assert table["run_id"] == ["a", "b", "b"]
    assert table["opd/loss"] == [1.0, None, None]
    assert table["actor/pg_loss"] == [None, 2.0, 3.0]


PLAIN = b'{"step": 1, "a": 1, "b": 0.5}\n{"step": 2, "a": 2.5}\n'
AWKWARD = (
    PLAIN, b"", PLAIN[:-9], PLAIN + b"\n" + PLAIN, b'{"step": 2, "a": "NaN", "c": true}\n', b'{"step": 1}{"step": 2}\n', b'{"a": 1}\n',
    b'{"step": -1, "a": 1}\n', b'{"step": 3, "a": null, "d": 1e400}\n', b'{"step": 2.5}\n', b'{"step": 2, "step": 1, "a": 7}\n', b"[1]\n",
)  # fmt: skip


@pytest.mark.parametrize("data", AWKWARD)
def test_a_metrics_file_is_read_by_the_rules_of_the_run_directory(data: bytes) -> None:
    def numbers(rows: list[dict]) -> list[dict[str, str]]:
        return [
            {name: repr(float(value)) for name, value in row.items() if type(value) in (int, float)} for row in rows
        ]

    table, skipped = read_metrics({1: PLAIN, 2: data})
    rows, of_second = parse_metrics(data, attempt=2)
    assert numbers(table.to_pylist()) == numbers(merge_attempts({1: parse_metrics(PLAIN, attempt=1)[0], 2: rows}))
    assert skipped == [of_second] * bool(of_second)


def test_logs_go_over_the_attempts_in_order(inside: Callable, make_run: Callable, store: Path) -> None:
    make_run("r", attempts=[{1: {"a": 1.0}}, {2: {"a": 1.0}}])
    for number in (1, 2):
        (store / "r" / "attempts" / f"000{number}" / "driver.log").write_text(f"hello {number}\nHF_TOKEN=abcdefgh\n")
    done = inside("logs", "r", "--store", store)
    assert done.stdout.splitlines() == [
        "===== attempt 1 =====", "hello 1", "HF_TOKEN=<redacted>",
        "===== attempt 2 =====", "hello 2", "HF_TOKEN=<redacted>",
    ]  # fmt: skip
    assert inside("logs", "r", "--store", store, "--tail", "1").stdout.splitlines() == ["HF_TOKEN=<redacted>"]  # fmt: skip


def seal_checkpoint(run: Path, step: int, files: dict[str, bytes]) -> None:
    """A sealed step as the run directory writes it."""
    from opd.runs.manifest import DRIVER_RANK, Manifest
    from opd.runs.shards import hash_files

    folder = run / "checkpoints" / f"global_step_{step}"
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    entries = tuple(hash_files(folder, sorted(files), rank=DRIVER_RANK))
    manifest = Manifest(step=step, attempt=1, spec_hash="hash-1", files=entries)
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    (folder / "COMPLETE").write_bytes(manifest.seal())
