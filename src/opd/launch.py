"""`python -m opd.launch EXP.yaml`: from an experiment file to a finished run on this machine (or in this Ray cluster)."""

import argparse
import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from opd.cluster.supervise import DEFAULT_GRACE_S, supervised
from opd.errors import EXIT_INTERRUPTED
from opd.experiment import Loaded, PipelineSpec, SpecError, dump_spec, load_spec
from opd.experiment.base import value_at
from opd.experiment.kinds import AnyRunSpec, AnySpec, ConvertSpec, DistillationSpec, TrainSpec
from opd.experiment.load import SITE_VARIABLE
from opd.experiment.pipeline import before_it_runs, stages_of
from opd.experiment.run_config import RunFacts
from opd.experiment.verl import compute_overrides
from opd.runs.run import Run, refuse
from opd.store.access import apply_experiment

_EPILOG = """\
examples:
  python -m opd.launch manifests/experiments/quickstart.yaml
  python -m opd.launch exp.yaml --set actor.learning_rate=3e-6 --seed 7 --dry-run
  python -m opd.launch exp.yaml --plan
  python -m opd.launch exp.yaml --site site.yaml
  MODEL_PATH=models/student TEACHER_MODEL_PATH=models/teacher python -m opd.launch exp.yaml --env
  python -m opd.launch exp.yaml -- actor_rollout_ref.rollout.enable_prefix_caching=false

precedence: site file < file < environment variables (--env) < --set < Hydra overrides after --
exit codes: 0 done, 1 our error or verl's, 2 a bad spec or a plan that does not fit (nothing was started), or what no later attempt can mend, 76 a lost node of a Ray cluster, 130 interrupted
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    usage, form = "%(prog)s EXP.yaml [options] [-- KEY=VALUE ...]", argparse.RawTextHelpFormatter
    out = argparse.ArgumentParser("python -m opd.launch", usage, __doc__, _EPILOG, formatter_class=form)
    of_site = f"what all runs on a cluster share, such as the store's server (default with --env: ${SITE_VARIABLE})"
    out.add_argument("spec", metavar="EXP.yaml", help="experiment file (.json: as Helm writes it)")
    out.add_argument("--site", metavar="FILE", help=of_site)
    out.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="set a key of the spec")
    out.add_argument("--name", help="name of the run; same as --set name=NAME")
    out.add_argument("--seed", help="seed of the run; same as --set seed=SEED")
    out.add_argument("--dry-run", action="store_true", help="print verl's overrides, one a line, and start nothing")
    out.add_argument("--plan", action="store_true", help="print what is on a GPU in which phase, and start nothing")
    of_check = "check the file, its cluster section and its inputs, and start nothing"
    out.add_argument("--check", action="store_true", help=of_check)
    out.add_argument("--env", action="store_true", help="apply the original's environment variables, over the file")
    out.add_argument("--grace-s", type=float, default=DEFAULT_GRACE_S, help="seconds a stopped run has to save")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    split = words.index("--") if "--" in words else len(words)
    args, hydra = parser().parse_args(words[:split]), words[split + 1 :]
    sets = [*args.set, *(f"{key}={value}" for key in ("name", "seed") if (value := getattr(args, key)) is not None)]
    try:
        env: Mapping[str, str] = os.environ if args.env else {}
        site = args.site or env.get(SITE_VARIABLE) or None
        is_elsewhere = args.plan or args.dry_run or args.check  # of another machine's run, where this one has no GPU
        unknown = None if is_elsewhere else 0
        count = lambda: None if os.environ.get("RAY_ADDRESS") else count_gpus() or unknown  # noqa: E731
        loaded = load_spec(args.spec, site=site, env=env, sets=sets, overrides=hydra, count_gpus=count)
    except SpecError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    report(loaded)
    spec = loaded.spec
    missing = [name for name in ("torch", "ray", "verl") if importlib.util.find_spec(name) is None]
    if missing and not (args.dry_run or args.plan):
        needs = f"opd.launch: the trainer is not installed ({', '.join(missing)}): pip install 'opd[train]' in Python 3.11 to 3.13"
        print(f"{needs}; with vLLM, on GPUs: 'opd[gpu]'", file=sys.stderr)
        return SpecError.exit_code
    if args.check:
        from opd.check import check

        return check(loaded, is_final=not args.env)
    if args.plan or args.dry_run:
        return show(loaded, args)
    start_run = functools.partial(start, is_final=not args.env, origin=loaded.origin)
    if isinstance(spec, PipelineSpec):
        from opd.pipeline import run as run_pipeline

        return run_pipeline(spec, start_run, is_final=not args.env, origin=loaded.origin, grace_s=args.grace_s)
    return supervised(lambda: start_run(spec), grace_s=args.grace_s)


@functools.cache
def count_gpus() -> int:
    """Return the GPUs that this process may use; 0 where nvidia-smi finds none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def show(loaded: Loaded, args: argparse.Namespace) -> int:
    """Print verl's overrides, or the memory of a GPU in each phase, of a run or of each stage; 2 where it does not fit."""
    from opd.memory.command import run as print_plan

    spec, codes = loaded.spec, [0]
    if isinstance(spec, PipelineSpec):
        stages = stages_of(spec)
        for stage, planned in zip(stages, before_it_runs(stages), strict=True):
            print(f"# stage {stage.name}: {planned.kind}, run {planned.name}", flush=True)
            if args.dry_run or isinstance(planned, TrainSpec):
                codes.append(show(replace(loaded, spec=stage.spec if args.dry_run else planned), args))
            else:
                print(f"no plan: kind {planned.kind} has none")
        return max(codes)
    if args.plan and not args.dry_run:
        apply_experiment(dump_spec(spec), is_final=not args.env)
        return print_plan(loaded)
    for line in [] if isinstance(spec, ConvertSpec) else compute_overrides(spec, run=facts(spec)):
        print(line)
    return 0


def report(loaded: Loaded) -> None:
    """Say on stderr what the environment changed and what deserves a remark."""
    for item in loaded.env_applied:
        print(f"opd.launch: environment {item.name}: {item.path} = {item.value}", file=sys.stderr)
    for note in loaded.notes:
        print(f"opd.launch: note: {note}", file=sys.stderr)


def facts(
    spec: AnyRunSpec, *, model_path: str | None = None, teacher_paths: Mapping[str, str | None] | None = None
) -> RunFacts:
    """Return what this start adds to the spec; a path of None means a model that is not fetched."""
    return RunFacts(
        run_id=spec.name,
        run_dir=f"{spec.output.root.rstrip('/')}/{spec.name}",
        in_ray_cluster=bool(os.environ.get("RAY_ADDRESS")),
        model_path=model_path,
        teacher_paths={key: path for key, path in (teacher_paths or {}).items() if path is not None},
    )


def start(spec: AnySpec, *, is_final: bool = False, origin: str = "", within: Run | None = None) -> int:
    """Look at the spec's files and hand it to its kind's entry point; the first heavy import happens here.

    Args:
        is_final: the spec outranks this process's environment (`opd.store.access`); false with --env.
        within: the attempt of the pipeline that it is a stage of.
    """
    from opd.inputs import Inputs, check_inputs
    from opd.inputs.models import fetch_model

    apply_experiment(dump_spec(spec), is_final=is_final)
    if isinstance(spec, ConvertSpec):
        from opd.convert import run as convert

        return convert(spec, within=within)
    try:
        check_machine(spec, origin=origin)
        check_inputs(Inputs.of(spec), origin=origin)
    except SpecError as error:
        return refuse(spec, error)
    teachers = spec.named_teachers if isinstance(spec, DistillationSpec) else {}
    model = fetch_model("model.path", spec.model.path, spec.model.revision)
    others = {key: fetch_model(f"{key}.path", one.path, one.revision) for key, one in teachers.items()}
    run = facts(spec, model_path=model, teacher_paths=others)
    print(f"run {spec.name}, in {run.run_dir}", flush=True)
    from opd.trainer.entry import run as work

    return work(spec, run, within=within)


def check_machine(spec: AnyRunSpec, *, origin: str = "") -> None:
    """Refuse a run that wants more than this machine has, before anything starts; a Ray cluster is asked later.

    Raises:
        SpecError: with the keys that mend it.
    """
    if os.environ.get("RAY_ADDRESS"):
        return
    problems = []
    if value_at(spec, "teacher.serve"):
        fix = "start a server yourself, and set teacher.url in its place"
        problems.append(spec.broken("teacher.serve", "the chart makes the servers, and only in a cluster", fix))
    if spec.device == "cuda" and (found := count_gpus()) < spec.num_ranks:
        path, fix = "device", "set device: cpu, and remove trainer.gpus_per_node"
        if found:
            path, fix = "trainer.gpus_per_node", f"set trainer.nnodes: 1 and trainer.gpus_per_node: {found}"
        wanted = f"the run wants {spec.num_ranks} GPUs (trainer.nnodes x gpus_per_node)"
        problems.append(spec.broken(path, f"{wanted}, and this machine has {found or 'none'}", fix))
    if problems:
        raise SpecError(problems, origin=origin)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the run was started
        sys.exit(EXIT_INTERRUPTED)
