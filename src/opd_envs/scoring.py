"""Parts that the rewards share: an answer's result as a reward row, and the database that a task was made for."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from opd_envs.database_folder import ManifestError
from opd_envs.travel.itinerary import Verdict

DATABASE_VARIABLE = "DATABASE_DIR"


class Result(NamedTuple):
    """An answer's score with the reasons."""

    score: float
    passed: bool
    pred: str
    verdicts: tuple[tuple[str, Verdict], ...]
    """(name of the entry in the breakdown, verdict)."""
    shares: dict[str, float]
    """Further numbers by name."""

    def row(self, extra_info: Mapping[str, Any]) -> dict[str, float | str]:
        """Return `score`, `acc`, `pred`, 1.0 or 0.0 for each constraint, the shares, and `gradeN` = `acc` of a grade N."""
        entries = {name: float(verdict.satisfied) for name, verdict in self.verdicts}
        acc = float(self.passed)
        grade = extra_info.get("grade")
        if grade is not None:
            entries[f"grade{int(grade)}"] = acc
        return {**entries, **self.shares, "score": self.score, "acc": acc, "pred": self.pred}


def folder_of(extra_info: Mapping[str, Any], database_dir: str | None) -> str:
    """Return the database folder: the argument, else the row's, else DATABASE_DIR's.

    Raises:
        ManifestError: none of them names one.
    """
    folder = database_dir or extra_info.get("database_dir") or os.environ.get(DATABASE_VARIABLE)
    if not folder:
        raise ManifestError(
            f"the reward has no database: pass database_dir (agent.database_dir) or set {DATABASE_VARIABLE}"
        )
    return str(folder)


def check_made_for(extra_info: Mapping[str, Any], folder: str, found: str, *, made_by: str) -> None:
    """Raise ManifestError where a row's task was made for another database than `found`."""
    made_for = extra_info.get("database_id")
    if made_for is not None and made_for != found:
        raise ManifestError(
            f"{folder}: is database {found}, this task was made for {made_for} and may have no solution here; "
            f"give the database that {made_by} was given, or prepare the data anew"
        )
