"""Kind `convert`: FSDP shards of a checkpoint to a Hugging Face folder that plain transformers loads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from opd.config import ConvertSpec

if TYPE_CHECKING:
    from opd.convert.attempt import Meanwhile
    from opd.runs.run import Run


def run(spec: ConvertSpec, *, within: Run | None = None, meanwhile: Meanwhile | None = None) -> int:
    """`opd.launch`'s way in: one attempt at a conversion, with a run directory as every kind has.

    Args:
        within: the attempt of the pipeline that the conversion is a stage of.
        meanwhile: entered with the attempt for as long as the conversion takes, of which nothing can be saved before its end.

    Returns:
        0 done (now, or by an earlier attempt whose target is still there), 1 refused or failed, 2 a request that cannot
        be followed; the reason is printed.
    """
    from opd.convert.attempt import run_attempt

    return run_attempt(
        spec,
        within=within,
        meanwhile=meanwhile,
        say=lambda text: print(f"opd.convert: {text}", file=sys.stderr, flush=True),
    )


__all__ = ["run"]
