"""The front door without a run: `opd.launch --check` reads a file, its cluster section and its inputs, and starts nothing.

The charts run it before a RayJob exists, in a pod without GPUs that has the run's image, claims and secrets.
"""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from opd.errors import StoreError, Unfit, UnusableInput
from opd.experiment import ConvertSpec, FileSpec, Loaded, PipelineSpec, Problem, SpecError, dump_spec
from opd.experiment.base import value_at
from opd.experiment.cluster import load_cluster
from opd.experiment.kinds import DistillationSpec, SftSpec
from opd.experiment.pipeline import stages_of
from opd.experiment.run_config import RunFacts
from opd.inputs import Inputs, check_inputs
from opd.inputs.model_files import ModelUnreadable
from opd.pods.start import CHART_VARIABLE, misfit
from opd.runs.origin import version_of
from opd.store.access import apply_experiment, is_store_url
from opd.store.remote import open_store


def check(loaded: Loaded, *, is_final: bool) -> int:
    """Print every problem of the file, its cluster section and its inputs; return 2 if there is one, else 0.

    Args:
        is_final: the spec outranks this process's environment, as in a pod.
    """
    if why := misfit(os.environ.get(CHART_VARIABLE, ""), version_of("opd")):
        print(f"opd.launch: {why}", file=sys.stderr)
        return SpecError.exit_code
    apply_experiment(dump_spec(loaded.spec), is_final=is_final)
    problems = list(_problems(loaded.spec))
    try:
        load_cluster(loaded.chart.get("cluster", {}), loaded.spec)
    except SpecError as error:
        problems = [*error.problems, *problems]
    if problems:
        print(SpecError(problems, origin=loaded.origin), file=sys.stderr)
        return SpecError.exit_code
    print(f"opd.launch: {loaded.origin}: the file and its inputs can be used")
    return 0


def _problems(spec: FileSpec) -> Iterator[Problem]:
    """Yield what is wrong with files and models of this machine, as the run finds it, and with objects of a store."""
    if isinstance(spec, PipelineSpec):
        for stage in stages_of(spec):
            yield from (problem.below(f"stages.{stage.name}") for problem in _problems(stage.spec))
    if isinstance(spec, ConvertSpec | PipelineSpec):
        return
    if isinstance(spec, DistillationSpec) and find_spec("torch"):  # divergences are functions of torch
        from opd.trainer.entry import loss_problems

        yield from loss_problems(spec.opd)
    inputs = Inputs.of(spec)
    try:
        check_inputs(inputs)
        if inputs.models and all(Path(path).is_dir() for _, path in inputs.models):
            from opd.rollout.reward import check_reward
            from opd.trainer.entry import check_models, compose

            config = compose(spec, RunFacts(run_id=spec.name, run_dir=spec.output.root))
            if not isinstance(spec, SftSpec):
                check_reward(config)
            check_models(config, inputs)
    except SpecError as error:
        yield from error.problems
    except (Unfit, ModelUnreadable) as error:
        yield Problem(path=error.key, value=value_at(spec, error.key), rule=str(error))
    except UnusableInput as error:
        key, rule = error.args
        yield Problem(path=key, value=value_at(spec, key), rule=rule)
    named = [*inputs.models, *inputs.places, *((data.key, path) for data in inputs.data for path in data.files)]
    for key, url in ((key, path) for key, path in named if is_store_url(path)):
        above, _, name = url.rstrip("/").rpartition("/")
        try:
            store = open_store(above)
            rule = "" if store.exists(name) or store.children(name) else "the store has nothing there"
        except StoreError as error:
            rule = f"the store cannot be read: {error}"
        if rule:
            yield Problem(path=key, value=url, rule=rule, fix="check the path, the bucket and the store's credentials")
