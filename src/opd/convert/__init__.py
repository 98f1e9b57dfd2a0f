"""Kind `convert`: FSDP shards of a checkpoint to a Hugging Face folder that plain transformers loads."""

from __future__ import annotations

import sys

from opd.config import ConvertSpec


def run(spec: ConvertSpec) -> int:
    """`opd.launch`'s way in: one attempt at a conversion, with a run directory as every kind has.

    Returns:
        0 done (now, or by an earlier attempt whose target is still there), 1 refused or failed, 2 a request that cannot
        be followed; the reason is printed.
    """
    from opd.convert.attempt import run_attempt

    return run_attempt(spec, say=lambda text: print(f"opd.convert: {text}", file=sys.stderr, flush=True))


__all__ = ["run"]
