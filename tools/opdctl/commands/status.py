"""`opdctl status`: one screen about one run, from its cluster and its store."""

import json
from dataclasses import asdict
from typing import Any

from opd.redaction import redact
from opdctl.console import Context, Namespace, Output, Run, StoreUrl, note, print_json
from opdctl.kube.rayjob import ClusterRun
from opdctl.runs.find import Finder, Found
from opdctl.runs.gather import gather
from opdctl.runs.listing import AttemptLine
from opdctl.runs.record import RunRecord
from opdctl.runs.sheets import runs_sheet
from opdctl.tables import NONE, Sheet, ago, facts


def status(
    run: Run, store: StoreUrl = None, namespace: Namespace = None, context: Context = None, output: Output = "table"
) -> None:
    """Show one run: phase, reasons of a delay, pods; step, loss, accuracies, time left; attempts.

    Examples: `opdctl status my-run -n opd` · `opdctl status my-run --store URL -o json`
    """
    found = Finder(store=store, namespace=namespace, context=context).locate(run)
    read = gather([found.place])[0] if found.place is not None else None
    attempts = read.listing.attempt_lines() if read is not None else []
    if output == "json":
        print_json(as_json(found, read.record if read else None, attempts))
        return
    parts = []
    if found.api is not None and found.in_cluster is not None and found.in_cluster.is_known:
        parts += _of_cluster(found.in_cluster, namespace=found.api.namespace)
    parts += _of_record(read.record, attempts) if read is not None else []
    print("\n\n".join(filter(None, parts)))
    for remark in found.notes:
        note(f"note: {remark}")


def as_json(found: Found, record: RunRecord | None, attempts: list[AttemptLine]) -> dict[str, Any]:
    """Return plain values; `cluster` and `store` are null where that side was not read."""
    seen, cluster = found.in_cluster, None
    if found.api is not None and seen is not None and seen.is_known:
        cluster = {
            "namespace": found.api.namespace,
            "job": asdict(seen.job) if seen.job else None,
            "pods": [asdict(pod) for pod in seen.pods],
            "in_the_way": seen.blockers,
        }
    stored = record.to_json() if record is not None else None
    return {
        "run": found.run_id,
        "cluster": cluster,
        "store": stored and {name: value for name, value in stored.items() if name != "spec"},
        "attempts": [asdict(attempt) for attempt in attempts],
        "notes": found.notes,
    }


def _of_cluster(run: ClusterRun, *, namespace: str) -> list[str]:
    rows = [("cluster", f"no RayJob in namespace {namespace}: deleted, or cleaned up after its end")]
    if run.job is not None:
        rows = [("cluster", run.job.describe()), ("namespace", namespace), ("started", ago(run.job.started_s))]
    lines = [
        (pod.name, pod.role, pod.phase, str(pod.num_gpus or NONE), pod.node or NONE, str(pod.num_restarts), pod.why)
        for pod in run.pods
    ]
    return [
        facts(rows),
        *(f"in the way: {redact(reason)}" for reason in run.blockers),
        str(Sheet(names=("pod", "role", "phase", "GPUs", "node", "restarts", "why"), lines=lines)) if lines else "",
    ]


def _of_record(record: RunRecord, attempts: list[AttemptLine]) -> list[str]:
    sheet = runs_sheet([record])
    model = record.spec.get("model")
    rows = [*zip(sheet.names, sheet.lines[0], strict=True), ("store", record.url)]
    rows += [("model", str(model.get("name", "")))] if isinstance(model, dict) else []
    if attempts and attempts[-1].progress:  # a resumed attempt is at an earlier step than the last logged one
        rows += [("progress", f"attempt {attempts[-1].attempt}: {attempts[-1].progress}")]
    plain = {name: value for name, value in (record.result or {}).items() if not isinstance(value, dict | list)}
    rows += [("result", json.dumps(plain))] if plain else []
    lines = [(str(line.attempt), line.host, ago(line.started_at_s), line.end or "not yet") for line in attempts]
    return [
        facts(rows),
        str(Sheet(names=("attempt", "host", "started", "ended"), lines=lines)),
        "\n".join(map(redact, record.remarks)),
    ]
