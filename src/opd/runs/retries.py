"""What is tried again, by whom and for how long, and what is not: one table, which README.md of this folder shows.

`python -m opd.runs.retries` prints it; tests/runs/test_retries.py holds that the README says the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from opd.runs.attempts import DEFAULT_LEASE_TTL_S, LEASES_TO_WAIT
from opd.runs.stream import FLUSH_INTERVAL_S
from opd.store.base import DEFAULT_POLICY
from opd.store.remote import CALL_DEADLINE_S, LIST_DEADLINE_S, SLOWEST_BYTES_PER_S


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of fault: what it is called in the code, what tries again, and what happens when that is over."""

    fault: str
    error: str
    tried_again: str
    then: str


_RETRY = f"each call, for {DEFAULT_POLICY.max_elapsed_s:g} s"
ROWS = (
    Row(
        fault="the store answers 408, 429, 5xx, not at all, half, or what makes no sense",
        error="StoreUnavailable",
        tried_again=_RETRY,
        then="a save stays on the disk and is uploaded later; a start or an end fails with exit 1",
    ),
    Row(
        fault="a request that never ends",
        error="StoreUnavailable",
        tried_again=f"ended after {CALL_DEADLINE_S:g} s ({LIST_DEADLINE_S:g} s a listing, a second more for each "
        f"{SLOWEST_BYTES_PER_S // 2**10} KiB that are transferred), then as above",
        then="as above",
    ),
    Row(
        fault="wrong credentials, a missing bucket, a folder that cannot be written",
        error="StoreRefused, NoBucket",
        tried_again="no",
        then="exit 1 with the reason",
    ),
    Row(
        fault="a store without create-only writes",
        error="CreateOnlyUnsupported",
        tried_again="no",
        then="exit 1 before anything is claimed",
    ),
    Row(
        fault="metrics or log cannot be uploaded or read (stale handle)",
        error="any",
        tried_again=f"every {FLUSH_INTERVAL_S:g} s while the run lives, and at the next start on this machine",
        then="they stay on the disk",
    ),
    Row(
        fault="the lease is not renewed because the store is away",
        error="StoreError",
        tried_again="at every beat",
        then="training goes on: nobody else can claim the run there; who was overtaken meanwhile stops at the first answer",
    ),
    Row(
        fault=f"the lease is older than its term ({DEFAULT_LEASE_TTL_S:g} s) for another reason",
        error="LeaseLost",
        tried_again="one beat from the training thread",
        then="the attempt stops, exit 1; the next one resumes",
    ),
    Row(
        fault="another attempt owns the run",
        error="Overtaken",
        tried_again="no",
        then="the attempt stops without another write, exit 1",
    ),
    Row(
        fault="the run is owned by a living attempt",
        error="RunIsLive",
        tried_again=f"waits for the lease, at most {LEASES_TO_WAIT:g} terms",
        then="exit 1 with the owner's host and pid",
    ),
    Row(
        fault="a file of a local checkpoint is missing, damaged or unreadable",
        error="(in the log)",
        tried_again="the store's copy, then the step before",
        then="from the beginning, or from what is left; every step passed over is named",
    ),
    Row(
        fault="a step is of another experiment, lacks a part, holds code, or cannot be loaded",
        error="(in the log)",
        tried_again="the step before",
        then="where loading itself failed and no step is left: exit 1",
    ),
    Row(
        fault="a checkpoint cannot be written, beside the training or within the step",
        error="any",
        tried_again="no",
        then="the step is not sealed; exit 1, the next start resumes from the step before",
    ),
    Row(
        fault="a save in which a rank's part is missing",
        error="CheckpointError",
        tried_again="no",
        then="the step is not sealed, exit 1",
    ),
    Row(
        fault="the store does not hold what was uploaded to it",
        error="(in the log)",
        tried_again="with the next upload of missing steps",
        then="not sealed there; older steps stay",
    ),
    Row(
        fault="no progress for trainer.stall_factor medians of a phase's silences, at least trainer.stall_floor_s",
        error="(stacks.txt)",
        tried_again="no; the launcher ends the attempt",
        then="exit 1; the next start resumes",
    ),
    Row(
        fault="the Ray cluster lacks the devices, CPUs or room that a part of the run needs",
        error="TooFewNodes, NoPlace",
        tried_again="waits for nodes, for a bounded time",
        then="exit 1 with what is missing on which node; the next start tries again",
    ),
    Row(
        fault="a process of the run is gone, or gcs_server or raylet of a Ray that the run started itself",
        error="PartLost",
        tried_again="no",
        then="exit 1 with its name; the next start resumes",
    ),
    Row(
        fault="an update whose loss or gradient is not finite on any rank",
        error="opd/skipped, then NonFinite",
        tried_again="no; it is skipped on all ranks",
        then="trainer.max_skipped_updates in a row, or all of the run, end it, in a cluster for good",
    ),
    Row(
        fault="the disk is full",
        error="DiskFull",
        tried_again="no",
        then="exit 1; the next start resumes",
    ),
    Row(
        fault="a fetched model is damaged in the cache, or its record is",
        error="(in the log)",
        tried_again="its file is fetched anew",
        then="FetchError where the store's own copy does not match its checksum twice",
    ),
    Row(
        fault="a bad spec, or another spec under the run's name",
        error="SpecChanged",
        tried_again="no",
        then="exit 2",
    ),
    Row(
        fault="a tracker or a rollout server that the spec names is not installed",
        error="MissingPackage",
        tried_again="no",
        then="exit 2 with how to install it",
    ),
    Row(
        fault="a reward function that the spec names cannot score",
        error="UnusableInput",
        tried_again="no",
        then="exit 2 with the reason",
    ),
    Row(
        fault="what no later attempt can mend",
        error="Unfit, fatal.json",
        tried_again="no; in a cluster later attempts end before Ray or a worker is started",
        then="exit 2 with the reason; a later attempt in the cluster: exit 1",
    ),
    Row(
        fault="anything else",
        error="Unforeseen",
        tried_again="no",
        then="exit 1 with its traceback, which is in driver.log too; the next start resumes",
    ),
    Row(
        fault="a lost head, node or pod",
        error="(KubeRay's), NodeLost",
        tried_again="where one pod had all ranks, in the same Ray cluster; else, and for a lost head, by KubeRay: "
        "cluster.retries.backoffLimit clusters, startsPerCluster starts in each",
        then="exit 76; the RayJob fails where no start is left",
    ),
)


def table() -> str:
    """The rows as Markdown."""
    lines = ["| what happens | error | tried again | then |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.fault} | {row.error} | {row.tried_again} | {row.then} |" for row in ROWS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
