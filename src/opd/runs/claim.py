"""The claim of the run that a spec names, before Ray or a worker starts."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

from opd.errors import RunError, RunFinished, Unfit, Unforeseen
from opd.experiment import BaseSpec, SpecError, dump_spec, identity, spec_hash
from opd.runs.result import INSTALL_VARIABLE, as_disk_full, refuse_if_over
from opd.runs.run import Run
from opd.store.remote import open_store


def open_run(spec: BaseSpec, *, within: Run | None = None) -> Run:
    """Claim the next attempt at the spec's run, as a stage of `within` if given; raises as `Run.open`."""
    return Run.open(
        run_id=spec.name,
        local_root=spec.output.root,
        spec=dump_spec(spec),
        identity=identity(spec),
        spec_hash=spec_hash(spec),
        store_url=spec.store.url,
        within=within,
    )


@contextlib.contextmanager
def attempting(claimed: Run) -> Iterator[Run]:
    """Enter the attempt; print the traceback of an unforeseen error into its log, and raise Unforeseen from it.

    The caller prints errors of a run, of its spec and of its inputs in a line.
    """
    with claimed:
        try:
            yield claimed
        except (RunError, SpecError, Unfit):
            raise
        except Exception as error:
            if as_disk_full(error, claimed.local.root) is not None:
                raise
            traceback.print_exc()  # the log closes with the attempt
            raise Unforeseen("the attempt has ended by the error above") from error


def refuse(spec: BaseSpec, error: SpecError) -> int:
    """End a start whose data or models cannot be used: print why, and return the exit code.

    An installation of our charts stores the reason, so that no retry of its RayJob asks for GPUs again. A finished run
    needs its inputs no more.
    """
    try:
        if os.environ.get(INSTALL_VARIABLE):
            with open_run(spec) as claimed:
                print(error, file=sys.stderr)
                claimed.fail(error, fatal=True)
            return error.exit_code
        refuse_if_over(open_store(spec.store.url).child(spec.name))
    except RunError as other:
        print(f"opd.launch: {other}", file=sys.stderr)
        if isinstance(other, RunFinished):
            return other.exit_code
    print(error, file=sys.stderr)
    return error.exit_code
