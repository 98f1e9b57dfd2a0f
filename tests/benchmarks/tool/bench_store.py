"""What `opdctl` takes to read a large store over HTTP: seconds and peak memory of each command, as a user calls it.

`make bench-tool`: 200 runs of 2,000 steps (collection.py), and 500 to be listed, in a real S3 server (versitygw) on this machine;
`--help`, `explain`, `collect`, `list`, `logs`, `compare` and `report`, each as a process of its own, with an empty cache and again with a filled one. What they write
is checked too. The table goes to RESULTS.md. A benchmark, not a timed test: the commands share
the machine's cores with the server and whatever else runs. This process stays smaller than what it measures, since Linux
counts the memory of a child from before its exec; so the store is filled, and what came out is checked, in processes of their own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.tool.collection import DAMAGED_RUN, Collection, fill, merge_problem
from tests.commit import this_commit
from tests.runs.s3 import server

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
# A bucket of its own for what is asked of more runs.
MANY, NUM_MANY = "many", 500
SPEC = ROOT / "manifests" / "experiments" / "quickstart.yaml"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command: its arguments, and what is wrong with what it wrote (by its stdout and stderr), empty if nothing is."""

    title: str
    arguments: tuple[str, ...]
    problem: Callable[[str, str], str]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Wall seconds, the process's own CPU seconds and its peak resident memory in MiB."""

    wall_s: float
    cpu_s: float
    peak_mib: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One command with an empty cache, and again with what it left there; `load` of the machine just before."""

    title: str
    load: float
    first: Measurement
    second: Measurement


def main() -> None:
    """Fill the store, start the server, run the commands, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=HERE, help="folder for RESULTS.md")
    parser.add_argument("--keep-report", type=Path, help="copy the report over the collection to this file")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        served(Path(name), args.runs, args.steps) as (collection, many, environment),
    ):
        folder = Path(name)
        num_mib = collection.num_metrics_bytes / 2**20
        title = f"{args.runs} runs x {args.steps} steps, {collection.num_metrics} metrics a line, {num_mib:.0f} MiB"
        print(title, flush=True)
        rows = []
        for case in cases(collection, many, folder, args.runs, args.steps):
            shutil.rmtree(folder / "cache", ignore_errors=True)
            load = round(os.getloadavg()[0], 1)
            row = Row(
                title=case.title,
                load=load,
                first=measure(case, environment, folder),
                second=measure(case, environment, folder),
            )
            rows.append(row)
            print(table_row(row), flush=True)
        report_mb = round((folder / "all.html").stat().st_size / 1e6, 1)
        if args.keep_report:
            shutil.copy(folder / "all.html", args.keep_report)
    facts = {
        "collection": title,
        "report_mb": report_mb,
        "num_cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    facts |= {"date": time.strftime("%Y-%m-%d"), "commit": this_commit()}
    (args.output / "RESULTS.md").write_text(document(facts, rows))


def cases(collection: Collection, many: Collection, folder: Path, num_runs: int, num_steps: int) -> Iterator[Case]:
    """Every reading command, over one run and over the collection."""
    names = collection.names
    parquet, one_page, all_page = folder / "all.parquet", folder / "one.html", folder / "all.html"

    def counts_every_run(out: str, err: str) -> str:
        missing = [name for name in names if name not in out]
        return f"{len(missing)} runs are missing" if missing else ""

    def tells_the_damage(out: str, err: str) -> str:
        if num_runs > DAMAGED_RUN and f"warning: {names[DAMAGED_RUN]}" not in err:
            return f"the damaged file of {names[DAMAGED_RUN]} was not reported: {err}"
        return counts_every_run(out, err)

    def merges_all(out: str, err: str) -> str:
        return apart(merge_problem, parquet, num_runs=num_runs, num_steps=num_steps) or tells_the_damage(
            " ".join(names), err
        )

    def page(path: Path, num_shown: int) -> Callable[[str, str], str]:
        def problem(out: str, err: str) -> str:
            html = path.read_text()
            missing = [name for name in names[:num_shown] if name not in html]
            return f"{path.name} lacks {len(missing)} runs" if missing else ""

        return problem

    def prints_the_log(out: str, err: str) -> str:
        found = out.count("\n")
        expected = collection.num_log_lines + 2  # a heading an attempt
        return "" if found == expected else f"{found} lines instead of {expected}"

    def compares(out: str, err: str) -> str:
        return "" if "actor.learning_rate" in out and "by seed" in out else "no paired difference"

    yield Case(title="collect (table)", arguments=("collect",), problem=tells_the_damage)
    yield Case(title="collect --format parquet", arguments=("collect", "--format", "parquet", "-o", str(parquet)),
               problem=merges_all)  # fmt: skip
    yield Case(
        title="--help", arguments=("--help",), problem=lambda out, err: "" if "explain" in out else "no commands"
    )
    yield Case(title="explain opd.loss_type", arguments=("explain", "opd.loss_type"),
               problem=lambda out, err: "" if "example" in out else "no example")  # fmt: skip
    yield Case(title=f"list, {len(many.names)} runs", arguments=("list", "--store", f"s3://{MANY}"),
               problem=lambda out, err: "" if out.count(f"{num_steps}/{num_steps}") == len(many.names) else "runs are missing")  # fmt: skip
    yield Case(title="list", arguments=("list",), problem=counts_every_run)
    yield Case(title="list --no-cache (runs read whole)", arguments=("list", "--no-cache"), problem=counts_every_run)
    yield Case(title="logs RUN", arguments=("logs", names[0]), problem=prints_the_log)
    two = names[:1] + names[4:5]
    yield Case(title="compare, 2 runs", arguments=("compare", *two),
               problem=lambda out, err: "" if "actor.learning_rate" in out else "no changes")  # fmt: skip
    yield Case(title="compare, 8 runs in 2 groups", arguments=("compare", *names[:8]), problem=compares)
    yield Case(title=f"compare, all {num_runs} runs", arguments=("compare", *names), problem=compares)
    yield Case(title="report, 1 run", arguments=("report", names[0], "-o", str(one_page)), problem=page(one_page, 1))
    yield Case(title=f"report, all {num_runs} runs", arguments=("report", "-o", str(all_page)), problem=page(all_page, num_runs))  # fmt: skip


def measure(case: Case, environment: dict[str, str], folder: Path) -> Measurement:
    """Runs one command; ends the benchmark if it fails or writes something wrong."""
    out, err = folder / "stdout", folder / "stderr"
    command = [sys.executable, "-m", "opdctl.cli", *case.arguments]
    with open(out, "wb") as out_file, open(err, "wb") as err_file:
        started = time.monotonic()
        process = subprocess.Popen(command, env=environment, stdout=out_file, stderr=err_file)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - started
    code = os.waitstatus_to_exitcode(status)
    problem = f"exit {code}" if code else case.problem(out.read_text(), err.read_text())
    if problem:
        sys.exit(f"{case.title}: {problem}\n{err.read_text()[-2000:]}")
    return Measurement(
        wall_s=round(wall_s, 2), cpu_s=round(usage.ru_utime + usage.ru_stime, 2), peak_mib=round(usage.ru_maxrss / 1024)
    )


def apart(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """What a call returns, made in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments, **keywords).result()


@contextmanager
def served(folder: Path, num_runs: int, num_steps: int) -> Iterator[tuple[Collection, Collection, dict[str, str]]]:
    """The collection and one of NUM_MANY runs behind a running server, and the environment of a command that reads it."""
    with server.running_server(folder) as port:
        bucket = folder / "data" / server.BUCKET
        collection = apart(fill, bucket, num_runs=num_runs, num_steps=num_steps, manifest=SPEC)
        many = apart(fill, folder / "data" / MANY, num_runs=NUM_MANY, num_steps=num_steps, manifest=SPEC)
        foreign = (*server.FOREIGN_VARIABLES, "KUBECONFIG", "KUBERNETES_SERVICE_HOST")
        yield (
            collection,
            many,
            {
                **{name: value for name, value in os.environ.items() if name not in foreign},
                **server.environment(port),
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tools")]),
                "KUBECONFIG": str(folder / "none"),
                "OPDCTL_CACHE_DIR": str(folder / "cache"),
                "OPDCTL_STORE": f"s3://{server.BUCKET}",
                "COLUMNS": "240",
            },
        )


def table_row(row: Row) -> str:
    return (
        f"| {row.title} | {row.first.wall_s:.1f} | {row.first.cpu_s:.1f} | {row.first.peak_mib:.0f} "
        f"| {row.second.wall_s:.1f} | {row.second.cpu_s:.1f} | {row.second.peak_mib:.0f} | {row.load:.0f} |"
    )


def document(facts: dict[str, object], rows: list[Row]) -> str:
    """RESULTS.md."""
    lines = [
        "# `opdctl` over a large store",
        "",
        "Written by `make bench-tool`: every command a process of its own against a real S3 server (versitygw) over HTTP on the "
        "same machine, first with an empty cache, then with what the first call left there.",
        "",
        f"{facts['date']}, commit {facts['commit']}, Python {facts['python']}, {facts['num_cores']} cores shared with the server "
        f"and with what else made the load: {facts['collection']}; {NUM_MANY} such runs for the longer list. The report of all runs is a page of "
        f"{facts['report_mb']} MB.",
        "",
        "| command | first: s | own CPU s | peak MiB | again: s | own CPU s | peak MiB | load |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *map(table_row, rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
