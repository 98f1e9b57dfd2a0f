"""From a spec to a finished run: compose verl's config, check, claim the run, start Ray (or join a cluster), train."""

import importlib.util
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict

from opd.cluster.supervise import rendezvous_in_a_file
from opd.compat import quiet
from opd.errors import EXIT_INTERRUPTED, MissingPackage, RunError, Unfit
from opd.experiment import AnyRunSpec, EvalSpec, SftSpec, SpecError
from opd.experiment.algorithm import Convert, Opd, Stage
from opd.experiment.errors import Problem
from opd.experiment.pipeline import sizes_of
from opd.experiment.rules import config_problems
from opd.experiment.run_config import KEY, RunConfig, RunFacts
from opd.experiment.verl import compute_overrides
from opd.inputs import Inputs, check_inputs
from opd.inputs.model_files import check_attention, check_loadable, load_tokenizer
from opd.runs import origin
from opd.runs.run import Run, attempting, open_run
from opd.trainer import tracking
from opd.trainer.processes import set_process_environment, start_ray

if TYPE_CHECKING:
    from opd.ending import Ending

CONFIG_NAME = "opd_trainer"


def config_dir() -> str:
    """Return the folder of `opd_trainer.yaml`."""
    return str(Path(__file__).resolve().parent.parent / "experiment")


def _verl_configs() -> Path:
    """Return the folder of verl's own configs. Hydra's `pkg://` would import verl for it, which takes seconds."""
    found = importlib.util.find_spec("verl")
    assert found is not None  # verl is a dependency
    folder = next(iter(found.submodule_search_locations or ()))
    return Path(folder) / "trainer" / "config"


def compose(spec: AnyRunSpec, facts: RunFacts) -> DictConfig:
    """Return verl's trainer config for a run, which carries what is ours.

    Raises:
        SpecError: a raw override cannot be used.
    """
    try:
        with hydra.initialize_config_dir(config_dir(), version_base=None):
            overrides = [f"hydra.searchpath=[file://{_verl_configs()}]", *compute_overrides(spec, run=facts)]
            config: DictConfig = hydra.compose(CONFIG_NAME, overrides=overrides)
    except HydraException as error:
        if not spec.overrides:
            raise  # a mistake of ours
        rule = f"verl's config cannot be composed with it: {' '.join(str(error).split())}"
        fix = "correct the key or its value; +KEY=VALUE adds a key that verl's config lacks"
        raise SpecError([Problem(path="overrides", value=list(spec.overrides), rule=rule, fix=fix)]) from error
    config[KEY] = RunConfig(spec=spec, run=facts).text()
    return config


def run(spec: AnyRunSpec, facts: RunFacts, *, within: Run | None = None) -> int:
    """Make one attempt at a run; the one place where a run ends.

    Args:
        within: the attempt of the pipeline that the run is a stage of.

    Returns:
        0 done (or done before). 130 asked to stop. EXIT_NODE_LOST a Ray cluster lost a node of the run. 2 another spec has this
        name, or models or installation cannot do what the spec asks for. 1 every other end.
    """
    set_process_environment(spec.device)
    try:
        config = compose(spec, facts)
        tracking.check_installed(config.trainer.logger)
        check_attention(config.actor_rollout_ref.model.override_config.get("attn_implementation"))
        claimed = open_run(spec, within=within)
        with attempting(claimed):
            try:
                tracking.set_environment(facts.run_id, claimed.local.root)
                origin.add(claimed.stores[0], claimed.attempt, **origin.origin())
                ending = _work(spec, config, claimed)
            except (Unfit, SpecError) as error:
                claimed.fail(error, fatal=facts.in_ray_cluster)
                raise
            if ending.result is not None:
                claimed.finish(ending.result)
    except KeyboardInterrupt:  # Ray makes a new one of ours
        return EXIT_INTERRUPTED
    except (RunError, SpecError, Unfit) as error:
        print(f"opd.launch: {error}", file=sys.stderr)
        return error.exit_code
    except Exception:  # noqa: BLE001 - the front door of a run: exit code and traceback say what it was
        traceback.print_exc()
        return 1
    return ending.exit_code


def _work(spec: AnyRunSpec, config: DictConfig, claimed: Run) -> "Ending":
    """Train or evaluate in a Ray of its own, or in a cluster's Ray; raise what the run raises."""
    import ray

    from opd.cluster import lost
    from opd.cluster.nodes import ALONE_WAIT_S, NODE_WAIT_S, fetch_on_nodes, needed, wait_for_nodes

    if isinstance(spec, EvalSpec) and spec.eval.checkpoint is not None:
        config.actor_rollout_ref.model.path = _converted(spec, spec.eval.checkpoint, claimed.local.root)
    sizes = sizes_of(spec)
    print(f"the run needs {sizes.num_nodes} x {needed(sizes)}", flush=True)
    print("starting Ray", flush=True)
    with rendezvous_in_a_file(spec):
        embedded = start_ray(config, num_cpus=sizes.num_nodes * sizes.node_cpus)
        try:
            models = prepare(config)
            if isinstance(spec, EvalSpec):
                from opd.evaluation.run import run as work
            else:
                from opd.loop import train as work
            wait_for_nodes(sizes, timeout_s=ALONE_WAIT_S if embedded else NODE_WAIT_S)
            check_server(spec)
            fetch_on_nodes(models)
            print("starting the run's processes", flush=True)
            told = claimed.summary.telling(tracking.RunGauges())
            with lost.watching(lost.looks(sizes)), told:
                return work(config, claimed)
        finally:
            if embedded:
                ray.shutdown()


def _converted(spec: EvalSpec, checkpoint: str, local_dir: Path) -> str:
    """Return the folder of the model that `convert` makes of a checkpoint: any world size, any store, every hash checked."""
    from opd.convert.pipeline import convert_checkpoint

    folder, trusts = local_dir / "model", spec.model.trust_remote_code
    shutil.rmtree(folder, ignore_errors=True)
    convert_checkpoint(
        Convert(checkpoint=checkpoint, target=str(folder), dtype="checkpoint", trust_remote_code=trusts, verify=False)
    )
    return str(folder)


def check_server(spec: AnyRunSpec) -> None:
    """Raise MissingPackage for a rollout server that is not installed, once the devices are known to be there."""
    from opd.kinds import serves

    needs_server = spec.teacher is None if isinstance(spec, EvalSpec) else serves(spec)
    if isinstance(spec, SftSpec) or not needs_server:
        return
    if spec.rollout.name == "vllm" and importlib.util.find_spec("vllm") is None:
        raise MissingPackage(
            "rollout.name: vllm needs the package vllm, which is not installed in the Python that runs this. On a machine with GPUs run "
            "`make setup-gpu` (or install opd[gpu]); images/trainer has it; without a GPU set device: cpu"
        )


def prepare(config: DictConfig) -> dict[str, str]:
    """Fill in fetched and bundled paths and the shared vocabulary, and return folders of fetched models by their URLs.

    Raises:
        UnusableInput: a reward function that could not score.
        SpecError: data or a model that cannot be used, or that is not in the store.
    """
    from verl.experimental.reward_loop import migrate_legacy_reward_impl
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from opd.inputs.locations import resolve
    from opd.rollout.reward import check_reward
    from opd.rollout.served_teacher import check_served

    quiet.mute(*quiet.IN_DRIVER)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    config = migrate_legacy_reward_impl(config)
    run = RunConfig.of(config).run
    with open_dict(config):
        config.actor_rollout_ref.ref.pop("model", None)  # the original's key of a teacher, of which this kind has none
        config.trainer.default_local_dir = str(Path(config.trainer.default_local_dir).absolute())
    distillation = RunConfig.of(config).distillation
    if distillation is not None and (problems := list(loss_problems(distillation.opd))):
        raise SpecError(problems)
    models = resolve(config, Path(run.run_dir).absolute() / "data")
    inputs = _inputs(config)
    check_inputs(inputs)
    if not isinstance(RunConfig.of(config).spec, SftSpec):
        check_reward(config)
    tokenizer = check_models(config, inputs)
    ours = RunConfig.of(config)
    check_served(ours.spec, tokenizer)
    return models


def check_models(config: DictConfig, inputs: Inputs) -> Any:
    """Check configs, chat template and tokenizers, fill in the shared vocabulary, and return the student's tokenizer.

    Raises:
        SpecError, Unfit: a model, its template or its tokenizer cannot be used.
    """
    from opd.inputs.data import shapes_of
    from opd.inputs.tokenizers import check_chat_template
    from opd.trainer.dataset import check_prompts

    model = config.actor_rollout_ref.model
    configs = {"model": check_loadable("model", model.path, trust_remote_code=model.trust_remote_code)}
    tokenizer = load_tokenizer(model)
    check_chat_template(config, tokenizer, frozenset().union(*map(shapes_of, inputs.data)))
    check_prompts(config, tokenizer, inputs.data)
    ours = RunConfig.of(config)
    if ours.distillation is not None:
        for key, teacher in ours.distillation.named_teachers.items():
            path, trust = ours.teacher_paths[key], teacher.trust_remote_code
            configs[key] = check_loadable(key, path, trust_remote_code=trust)
        config[KEY] = _with_vocabularies(ours, config, tokenizer).text()
    of_configs = (config_problems(ours.spec, one.to_dict(), f"{key}.path") for key, one in configs.items())
    if problems := [problem for found in of_configs for problem in found]:
        raise SpecError(problems)
    return tokenizer


def loss_problems(opd: Opd) -> Iterator[Problem]:
    """Yield divergences, scores and weights that do not exist or refuse their parameters, before a rank asks for them."""
    from opd.losses.divergences import DIVERGENCES, Unusable, divergence_of
    from opd.weights.problems import problem_weight
    from opd.weights.stages import params_of
    from opd.weights.tokens import token_score

    tokens, problems = opd.importance.tokens.score, opd.importance.problems.weights
    asked: list[tuple[str, object, Callable[[], object]]] = [
        ("opd.importance.tokens.score", tokens, partial(token_score, tokens)),
        ("opd.importance.problems.weights", problems, partial(problem_weight, problems)),
    ]
    parts: dict[str, Opd | Stage] = {"opd": opd, **{f"opd.stages.{place}": of for place, of in enumerate(opd.stages)}}
    for at, part in parts.items():
        if part.loss_type:
            asked.append((f"{at}.loss_type", part.loss_type, partial(divergence_of, part.loss_type)))
            if found := DIVERGENCES.get(part.loss_type):
                asked.append((f"{at}.loss_params", part.loss_params, partial(found.checked, params_of(opd, part))))
    for key, value, ask in asked:
        try:
            if value != "none":
                ask()
        except Unusable as error:
            _, rule, fix = error.args
            yield Problem(path=key, value=value, rule=rule, fix=fix)


def _inputs(config: DictConfig) -> Inputs:
    """Return the spec's inputs as the config names them, which are on this machine by now."""
    ours, data = RunConfig.of(config), config.data
    files = {"data.train": data.train_files, "data.val": data.val_files}
    models = [("model.path", str(config.actor_rollout_ref.model.path))]
    models += [(f"{key}.path", path) for key, path in ours.teacher_paths.items()]
    sets = [replace(one, files=files[one.key], written=data.fetched_from) for one in Inputs.of(ours.spec).data]
    return Inputs(models=models, data=sets, spec=ours.spec)


def _with_vocabularies(ours: RunConfig, config: DictConfig, tokenizer: Any) -> RunConfig:
    """Return the config with the numbers of shared tokens, from the student's tokenizer and each teacher's."""
    from opd.inputs.tokenizers import shared_tokens

    spec, model = ours.distillation, config.actor_rollout_ref.model
    assert spec is not None  # asked for distillation only
    if not spec.named_teachers:  # the tokenizer of a served one is compared over its address
        return ours.with_facts(valid_vocab=len(tokenizer))
    for key, of_key in spec.named_teachers.items():
        try:
            found = shared_tokens(
                model.path,
                ours.teacher_paths[key],
                trust_student=model.trust_remote_code,
                trust_teacher=of_key.trust_remote_code,
                tokenizer=tokenizer,
                template_kwargs=config.data.get("apply_chat_template_kwargs"),
                key=key,
            )
            valid, student, teacher = found
            more = [f"the {side} {entries - found.shared} more" for side, entries in found.beyond().items()]
            if more and spec.teachers:
                raise Unfit(
                    f"{key}.path={ours.teacher_paths[key]}: each of several teachers must have the student's tokens, but this teacher "
                    f"shares {found.shared} with it ({' and '.join(more)}). Choose a teacher with the student's tokenizer, or give this teacher a "
                    "run of its own"
                )
        except Unfit as error:
            error.key = f"{key}.path"
            raise
    if more:
        print(f"student and teacher share {found.shared} tokens, {' and '.join(more)}", flush=True)
    return ours.with_facts(valid_vocab=valid, student_vocab=student, teacher_vocab=teacher)
