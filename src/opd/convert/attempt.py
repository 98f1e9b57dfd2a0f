"""A conversion as a run: an attempt is claimed, its log kept, and result.json says what was written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from opd.config import ConvertSpec
from opd.convert.errors import ConvertError
from opd.errors import RunError, RunFinished
from opd.runs.claim import attempting, open_run
from opd.runs.progress import PROGRESS
from opd.runs.run import Run
from opd.store.opening import open_store

EXIT_FAILED = 1
Meanwhile = Callable[[Run], AbstractContextManager[None]]


def run_attempt(
    spec: ConvertSpec, *, say: Callable[[str], None], within: Run | None = None, meanwhile: Meanwhile | None = None
) -> int:
    """Convert under the spec's name; returns the exit code, `say` gets the reason of any but 0; see `opd.convert.run`."""
    try:
        with attempting(open_run(spec, within=within), ConvertError, OSError) as claimed:
            PROGRESS.rest("conversion")
            with nullcontext() if meanwhile is None else meanwhile(claimed):
                from opd.convert.pipeline import convert_checkpoint  # torch and verl, only once the run is ours

                done = convert_checkpoint(spec.convert)
            claimed.finish({"target": done.target, "conversion": dict(done.record)})
    except RunFinished as finished:
        return _finished_before(spec, finished, say)
    except (ConvertError, RunError) as error:
        say(str(error))
        return error.exit_code
    except OSError as error:
        say(f"{type(error).__name__}: {error}")
        return EXIT_FAILED
    return 0


def _finished_before(spec: ConvertSpec, finished: RunFinished, say: Callable[[str], None]) -> int:
    """0 if what an earlier attempt wrote is what this one would write, and still there."""
    say(str(finished))
    written = finished.result["target"]
    wanted = open_store(spec.convert.target).url if spec.convert.target else written
    if wanted == written and open_store(written).exists("config.json"):
        return 0
    say(
        f"it wrote {written}, wanted now is {wanted}: start under another name (--name), or delete the run's result.json"
    )
    return EXIT_FAILED
