"""Kind `pipeline`: its stages run one after another, each in processes of its own, from the first unfinished one on.

A stage is a run of its own below the pipeline's folder in the store. It is finished if its run has a result under the spec
that the stage has now; an unfinished stage resumes as any run does. Each process that runs a stage is an attempt of the
pipeline's own run, whose step is the number of finished stages. In a cluster pods ask for a save in the pipeline's folder,
where a stage answers that trains or evaluates.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from opd.cluster.supervise import supervised
from opd.errors import CorruptRecord, RunError, RunFinished, SpecChanged
from opd.experiment import AnySpec, BaseSpec, ConvertSpec, PipelineSpec, SpecError, dump_spec, spec_hash
from opd.experiment.pipeline import Reference, Stage, stages_of
from opd.inputs import Inputs, input_problems
from opd.runs.manifest import step_folder
from opd.runs.progress import PROGRESS
from opd.runs.result import RESULT_FILE
from opd.runs.run import attempting, open_run, refuse
from opd.runs.summary import SUMMARY_FILE, Summary
from opd.store.access import apply_experiment
from opd.store.base import Store
from opd.store.remote import open_store

EXIT_NEXT_STAGE = 75
"""Exit code of a process that has finished a stage and leaves others; the parent reads it."""

Start = Callable[..., int]
Following = tuple[str, AnySpec]


def run(spec: PipelineSpec, start: Start, *, is_final: bool, origin: str, grace_s: float) -> int:
    """Run the pipeline to its end, or to the first stage that fails; see `opd.cluster.supervise.supervised`.

    Args:
        start: runs one stage in this process, `within` the pipeline's attempt, and returns its exit code.
        is_final: the spec outranks this process's environment, as in a pod.

    Returns:
        0 where all stages are finished, else the exit code of the stage that is not.
    """
    parent, code = os.getpid(), EXIT_NEXT_STAGE
    one_stage = functools.partial(_one_stage, spec, start, is_final=is_final, origin=origin)
    while code == EXIT_NEXT_STAGE and os.getpid() == parent:  # `supervised` also returns in the child, to end it
        code = supervised(one_stage, grace_s=grace_s)
    return code


def _one_stage(spec: PipelineSpec, start: Start, *, is_final: bool, origin: str) -> int:
    """Run the first stage that is not finished, if there is one; after the last, end the pipeline's run."""
    PROGRESS.rest("start")  # the supervisor still sees how the stage before ended
    apply_experiment(dump_spec(spec), is_final=is_final)
    stages = stages_of(spec)
    following: Following | None = None
    try:
        finished, following = look(stages)
        runs = [] if finished else [(one.name, one.spec) for one in stages if not isinstance(one.spec, ConvertSpec)]
        found = {f"stages.{name}": input_problems(Inputs.of(run)) for name, run in runs}
        if problems := [problem.below(at) for at, of_run in found.items() for problem in of_run]:
            raise SpecError(problems, origin=origin)
        with attempting(open_run(spec)) as claimed:
            if following is not None:
                name, resolved = following
                number = f"{len(finished) + 1} of {len(stages)}"
                print(f"opd.launch: stage {number}, {name}: run {resolved.name} in {resolved.store.url}", flush=True)
                PROGRESS.within(f"{name} ({number})")
                PROGRESS.rest("start")
                if code := start(resolved, within=claimed):
                    claimed.fail(f"stage {name}: its run {resolved.name} ended with exit code {code}")
                    return code
                finished[name] = resolved
            for step, run_spec in enumerate(finished.values(), start=1):
                latest: dict[str, float] = {}  # loss and score, for the pipeline's line in a list
                with contextlib.suppress(CorruptRecord):
                    latest = Summary.from_json(_store(run_spec).get_json(SUMMARY_FILE) or {}).latest
                claimed.log(step, {"pipeline/stages": step, **latest})
            if len(finished) < len(stages):
                return EXIT_NEXT_STAGE
            claimed.finish({"steps": len(stages), "stages": {name: found.name for name, found in finished.items()}})
    except SpecError as error:
        return refuse(spec, error)
    except RunFinished as done:
        if following is None:
            print(f"opd.launch: {done}", file=sys.stderr)
            return 0
        rule = f"{spec.name} finished with other stages than these; {following[0]} has not run"
        fix = f"delete {_store(spec).url}/{RESULT_FILE} to continue with this one"
        print(f"opd.launch: {rule}. Give the pipeline another name, or {fix}", file=sys.stderr)
        return SpecChanged.exit_code
    except RunError as error:
        print(f"opd.launch: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def look(stages: Sequence[Stage]) -> tuple[dict[str, AnySpec], Following | None]:
    """Return the finished stages by name with their specs, in order, and the next stage, or None.

    Raises:
        SpecError: a result makes no usable key of a stage.
        StoreError: the store does not answer.
    """
    # Here, for pyarrow: the process that starts the others stays small.
    from opd.evaluation.pass_rates import PASS_RATES_KEY
    from opd.evaluation.samples import GENERATIONS_KEY

    files = {"generations": GENERATIONS_KEY, "pass_rates": PASS_RATES_KEY}
    finished: dict[str, AnySpec] = {}

    def value_of(reference: Reference) -> str:
        spec = finished[reference.stage]
        if isinstance(spec, ConvertSpec):
            return spec.convert.target or str(_result(spec)["target"])
        key = files.get(reference.result) or step_folder(_result(spec)["steps"])
        return f"{spec.store.url}/{spec.name}/{key}"

    for stage in stages:
        spec = stage.resolved(value_of)
        if _result(spec).get("spec_hash") != spec_hash(spec):
            return finished, (stage.name, spec)
        finished[stage.name] = spec
    return finished, None


def _store(spec: BaseSpec) -> Store:
    return open_store(spec.store.url).child(spec.name)


def _result(spec: AnySpec) -> dict[str, Any]:
    """Return the stage's result.json, empty if it has none."""
    return _store(spec).get_json(RESULT_FILE) or {}
