"""A run under a real Ray, as a program: `FOLDER`. Prints the names that Ray's exporter gives Prometheus once all of the run's are there."""

from __future__ import annotations

import re
import sys
import time
import urllib.request
from pathlib import Path

from tests.ports import free_ports


def main(folder: Path) -> None:
    from opd.cluster.supervise import stay_on_loopback

    stay_on_loopback()
    import ray

    from opd.compat.ray_start import patient_start
    from opd.runs.progress import PROGRESS
    from opd.runs.run import Run
    from opd.trainer.tracking import GAUGES, RunGauges

    [port] = free_ports(1)
    with patient_start():
        ray.init(
            address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=10**8,
            _metrics_export_port=port, _system_config={"metrics_report_interval_ms": 1000},
        )  # fmt: skip
    PROGRESS.watch(folder="", floor_s=600.0, factor=10.0)
    PROGRESS.enter("rollout", 3)
    run = Run.open(run_id="r", local_root=folder, spec={"a": 1}, spec_hash="h", tee=False, lease_ttl_s=2.0)
    with run, run.summary.telling(RunGauges()):
        run.summary.total_steps = 10
        run.log(
            3, {"opd/loss": 0.5, "opd/accuracy": 0.25, "timing_s/step": 2.0, "perf/throughput": 9.0, "opd/skipped": 2}
        )
        deadline = time.monotonic() + 120
        while True:
            values = _scraped(port)
            # What is set last, so that no look falls between two of them.
            if {f"ray_{name}" for name in GAUGES} <= values.keys() and values["ray_opd_skipped_updates"] == 2:
                break
            assert time.monotonic() < deadline, (
                f"not exported: {sorted({f'ray_{name}' for name in GAUGES} - values.keys())}"
            )
            time.sleep(0.2)
        print(*(f"{name}={value}" for name, value in values.items()), flush=True)
    ray.shutdown()


def _scraped(port: int) -> dict[str, float]:
    """Name -> value of one of its series."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    lines = re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
