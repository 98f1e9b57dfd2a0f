"""Errors of a run, in one hierarchy below RunError, each with the exit code with which a launcher ends."""

import os
from collections.abc import Mapping
from typing import Any

EXIT_INTERRUPTED = 130
EXIT_NODE_LOST = 76
"""Of a start in a Ray cluster that ended as NodeLost: `opd.pods.start` begins again there. Elsewhere it is 1."""


class Stopped(KeyboardInterrupt):
    """A signal that unwinds the main thread; `opd.cluster.supervise` raises it, and the process ends with EXIT_INTERRUPTED.

    Ray's calls let no exception but KeyboardInterrupt out of a signal handler.
    """


class RunError(Exception):
    """Base of every error below; `exit_code` is what the process should end with."""

    exit_code = 1


class StoreError(RunError):
    """The object store failed."""


class StoreUnavailable(StoreError):
    """A transient failure that outlasted its bounded retries."""


class StoreRefused(StoreError):
    """A permanent failure: trying again cannot help."""


class NoBucket(StoreRefused):
    """The store has no such bucket."""


class CreateOnlyUnsupported(StoreError):
    """The store has no create-only write, by which attempts are claimed."""


class AlreadyExists(StoreError):
    """A create-only write found the object there."""


class DiskFull(RunError):
    """The disk that holds the run directory is full."""


class MissingPackage(RunError):
    """The spec asks for something whose package is not installed."""

    exit_code = 2


class CorruptRecord(RunError):
    """A JSON record of the run directory cannot be read."""


class SpecChanged(RunError):
    """The run id is taken by an experiment with another spec hash."""

    exit_code = 2


class RunIsLive(RunError):
    """Another process owns this run and its lease has not run out."""


class Overtaken(RunError):
    """A newer attempt, or another claim of the same number, owns this run; this one must stop writing."""


class LeaseLost(RunError):
    """The lease is too old, so another attempt may own the run: save locally and end."""


class RunFinished(RunError):
    """The run ended well before; `result` is its result.json."""

    exit_code = 0

    def __init__(self, message: str, result: Mapping[str, Any]):
        super().__init__(message)
        self.result = dict(result)


class RunFatal(RunError):
    """An earlier attempt ended the run for good."""


class CheckpointError(RunError):
    """A checkpoint cannot be written or read, is unfinished or damaged, or names a path outside its folder."""


class Unfit(ValueError):
    """The models of the spec cannot be distilled exactly: different tokens, or a head that is more than a product.

    In a Ray cluster the run is marked fatal, so that no retry spends one on it.
    """

    exit_code = 2
    key = "model.path"  # of the spec, whose value has to change


class UnusableInput(RunError):
    """A function or a server of the spec that cannot do what a run needs: (key, rule). Mended in its place, the same spec runs."""

    exit_code = 2

    def __str__(self) -> str:
        return ": ".join(self.args)


class Unforeseen(RunError):
    """An error that is none of these ended the attempt; it is the cause, and its traceback is printed."""


class TooFewNodes(RunError):
    """The Ray cluster does not offer the devices and CPUs that the run needs, and did not while it was waited for."""

    def __init__(self, lacking: str) -> None:
        super().__init__(
            f"{lacking}. Give the nodes more CPUs (cluster.worker.requests.cpu; `ray start --num-cpus`), lower "
            "trainer.nnodes or trainer.gpus_per_node, or see why nodes are missing (their pods)"
        )


class PartLost(RunError):
    """Processes of the run are gone with their node or by a kill; the next attempt continues from the newest checkpoint."""

    def __init__(self, lost: list[str]) -> None:
        super().__init__(f"the run has lost {'; '.join(lost)}. The next attempt resumes from the newest checkpoint")


class NodeLost(PartLost):
    """A node of the run is gone; another takes its place, and nothing of what has happened to this one is there."""

    def __init__(self, lost: list[str]) -> None:
        super().__init__(lost)
        if os.environ.get("RAY_ADDRESS"):  # a cluster, to which lost pods come back
            self.exit_code = EXIT_NODE_LOST
