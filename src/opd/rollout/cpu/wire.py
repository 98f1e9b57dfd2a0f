"""An answer on its way to verl: pickled here without verl, unpickled there as verl's own `TokenOutput`."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(kw_only=True)
class VerlTokenOutput:
    """The fields of `verl.workers.rollout.replica.TokenOutput` (0.9.1) that the CPU rollout fills."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str
    num_preempted: int
    extra_fields: dict[str, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return _token_output, (asdict(self),)


def _token_output(fields: dict[str, Any]) -> Any:
    from verl.workers.rollout.replica import TokenOutput

    return TokenOutput(**fields)
