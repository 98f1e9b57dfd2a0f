"""What travels between the scorer pool and its worker processes."""

from typing import Any, NamedTuple

from opd.rewards.scorers import BUILTIN_FUNCTIONS


class ScoreTask(NamedTuple):
    """One answer to score."""

    function: str
    """A name in `BUILTIN_FUNCTIONS`, `package.module:callable` or `path/to/file.py:callable`."""
    data_source: str
    solution: str
    ground_truth: Any
    extra_info: dict[str, Any]
    kwargs: dict[str, Any]

    @property
    def isolated(self) -> bool:
        """Whether it must run in the pool: built-in string work is bounded, nothing else is trusted to end."""
        builtin = BUILTIN_FUNCTIONS.get(self.function)
        return builtin is None or builtin.isolated


class Failure(NamedTuple):
    """Why an answer has no score."""

    reason: str
    worst_score: float | None = None
    """What a custom function declares as its lowest score (`function.worst_score`); None where it does not."""


class Started(NamedTuple):
    """A worker has its scorer imported and begins: the deadline's clock starts here."""

    worst_score: float | None = None
    """As in `Failure`: told before scoring, since a scorer that hangs tells nothing afterwards."""


class WrongConfiguration(ValueError):
    """What a scorer raises where its settings are at fault and no answer is: raised in the caller, never scored as wrong."""


class ConfigurationFault(NamedTuple):
    """A worker cannot import the scorer, call it with these arguments or score by its settings: raised in the caller."""

    error_type: type[Exception]
    message: str
