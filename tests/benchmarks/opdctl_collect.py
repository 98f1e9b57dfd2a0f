"""`python tests/benchmarks/opdctl_collect.py`: wall time and peak memory of `opdctl collect` over HTTP from a real S3 server.

200 runs of 2,000 steps (two attempts each, 45 metrics a line) lie in versitygw on this machine; collected twice, then as a
table. Prints one line a command. A benchmark, not a timed test: it shares its cores with the server.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUM_METRICS = 45
NUM_DISTINCT = 4


def main() -> None:
    """Fills the store, starts the server, runs the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    server = _server_module()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num_bytes = fill(folder / "data" / server.BUCKET, args.runs, args.steps)
        print(
            f"{args.runs} runs x {args.steps} steps, {NUM_METRICS} metrics a line: {num_bytes / 2**20:.0f} MiB",
            flush=True,
        )
        port = server.free_port()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tools")]),
            "OPDCTL_CACHE_DIR": str(folder / "cache"),
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": server.ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": server.SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        keys = {"ROOT_ACCESS_KEY": server.ACCESS_KEY, "ROOT_SECRET_KEY": server.SECRET_KEY}
        command = [str(server.build_server()), "--quiet", "--port", f"127.0.0.1:{port}", "posix", str(folder / "data")]
        process = subprocess.Popen(command, env={**os.environ, **keys}, stdout=subprocess.DEVNULL)
        try:
            _wait_for(port)
            url = f"s3://{server.BUCKET}"
            for title, arguments in (
                ("table, first time", ["collect"]),
                ("table, second time", ["collect"]),
                (
                    "parquet of every step, cached",
                    ["collect", "--format", "parquet", "-o", str(folder / "all.parquet")],
                ),
                ("list", ["list"]),
            ):
                measure(title, [*arguments, "--store", url], environment)
        finally:
            process.terminate()
            process.wait(30)


def fill(bucket: Path, num_runs: int, num_steps: int) -> int:
    """Writes the runs as the server's files; a few distinct histories, repeated. Returns bytes of metrics."""
    histories = [history(seed, num_steps) for seed in range(NUM_DISTINCT)]
    num_bytes = 0
    for number in range(num_runs):
        run = bucket / f"run-{number:03d}"
        for attempt, data in enumerate(histories[number % NUM_DISTINCT], start=1):
            folder = run / "attempts" / f"{attempt:04d}"
            folder.mkdir(parents=True)
            (folder / "metrics.jsonl").write_bytes(data)
            (folder / "owner.json").write_text("{}")
            (folder / "ended.json").write_text('{"outcome": "stopped"}')
            num_bytes += len(data)
        for name, record in (
            ("run.json", {"spec_hash": "x", "identity": {}}),
            ("spec.json", {"kind": "opd", "seed": number, "trainer": {"total_steps": num_steps}}),
            ("result.json", {"steps": num_steps}),
        ):
            (run / name).write_text(json.dumps(record))
    return num_bytes


def history(seed: int, num_steps: int) -> tuple[bytes, bytes]:
    """Two attempts: the second one resumed 20 steps before the first one's end."""
    rng = random.Random(seed)
    names = ["opd/loss", "opd/accuracy", "opd/grad_norm", "timing/step_s"]
    names += [f"timing_s/part_{index}" for index in range(NUM_METRICS - len(names))]

    def line(step: int) -> str:
        row: dict[str, float] = {"step": step, "time": 1.7e9 + step}
        row |= {name: math.exp(-step / 500) + rng.random() for name in names}
        if step % 20 == 0:
            row["val-core/math/acc/mean@1"] = rng.random()
        return json.dumps(row) + "\n"

    middle = num_steps // 2
    first = "".join(line(step) for step in range(1, middle + 21))
    return first.encode(), "".join(line(step) for step in range(middle + 1, num_steps + 1)).encode()


def measure(title: str, arguments: list[str], environment: dict[str, str]) -> None:
    """Runs one command and prints what it took."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "opdctl.cli", *arguments], env=environment,
                               stdout=subprocess.DEVNULL)  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"{title}: exit {os.waitstatus_to_exitcode(status)}"
    cpu_s = usage.ru_utime + usage.ru_stime
    print(
        f"{title:32s} {time.monotonic() - started:6.1f} s  (own CPU {cpu_s:.1f} s)  peak {usage.ru_maxrss / 1024:4.0f} MiB",
        flush=True,
    )


def _server_module():
    spec = importlib.util.spec_from_file_location("s3_fixtures", ROOT / "tests" / "runs" / "s3" / "server.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.05)


if __name__ == "__main__":
    main()
