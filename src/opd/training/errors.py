"""Errors of the trainer that have a name of their own: what another attempt cannot mend, and what it may."""

from opd.runs.errors import RunError


class Unfit(ValueError):
    """The models of the spec cannot be distilled exactly: different tokens, or a head that is more than a product.

    The run is marked fatal, so that no retry spends a cluster on it.
    """

    exit_code = 2


class UnusableInput(RunError):
    """A function that the spec names cannot do what a run needs of it; mended in its place, the same spec runs."""

    exit_code = 2


class TooFewNodes(RunError):
    """The Ray cluster does not offer the devices and CPUs that the run needs, and did not while it was waited for."""


class NoPlace(RunError):
    """A part of the run found no node with the resources that it asks for, and did not while it was waited for."""


class PartLost(RunError):
    """Processes of the run are gone with their node or by a kill; the next attempt goes on from the newest checkpoint."""

    def __init__(self, lost: list[str]) -> None:
        super().__init__(f"the run has lost {'; '.join(lost)}. The next attempt resumes from the newest checkpoint")
