"""Kind `convert`: FSDP shards of a checkpoint to a Hugging Face folder that plain transformers loads."""

from opd.convert.errors import say
from opd.errors import RunError, RunFinished
from opd.experiment import ConvertSpec
from opd.runs.progress import PROGRESS
from opd.runs.run import Run, attempting, open_run
from opd.store.remote import open_store

EXIT_FAILED = 1


def run(spec: ConvertSpec, *, within: Run | None = None) -> int:
    """Make one attempt at a conversion, with a run directory as every kind has.

    Args:
        within: the attempt of the pipeline that the conversion is a stage of.

    Returns:
        0 done, now or by an earlier attempt whose target is still there. 1 rejected or failed. 2 a request that cannot be
        followed.
    """
    try:
        with attempting(open_run(spec, within=within)) as claimed:
            PROGRESS.rest("conversion")
            from opd.convert.pipeline import convert_checkpoint  # torch, only once the run is ours

            target, record = convert_checkpoint(spec.convert)
            claimed.finish({"target": target, "conversion": record})
    except RunFinished as finished:
        return _finished_before(spec, finished)
    except RunError as error:
        return refused(error)
    return 0


def refused(error: RunError | OSError) -> int:
    """Print an error and return its exit code."""
    say(str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}")
    return getattr(error, "exit_code", EXIT_FAILED)


def _finished_before(spec: ConvertSpec, finished: RunFinished) -> int:
    """Return 0 if what an earlier attempt wrote is what this one would write, and still there."""
    say(str(finished))
    written = finished.result["target"]
    wanted = open_store(spec.convert.target).url if spec.convert.target else written
    if wanted == written and open_store(written).exists("config.json"):
        return 0
    say(
        f"it wrote {written}, wanted now is {wanted}: start under another name (--name), or delete the run's result.json"
    )
    return EXIT_FAILED
