"""The data files and model folders of an experiment, checked before anything heavy is imported or started.

Torch-free. Every fault becomes one `Problem` with key, value, rule and fix; all of them are reported together.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opd.agent.environments import DEFAULT_TOOLSET, NoEnvironment, load_environment, no_reward, source_of
from opd.data.reading import PROMPT, How
from opd.experiment.algorithm import MESSAGES
from opd.experiment.errors import Problem, SpecError
from opd.experiment.kinds import AnyRunSpec, DistillationSpec, EvalSpec, OpdSpec, SftSpec
from opd.experiment.rules import config_problems
from opd.inputs.data import DataSet, data_problems
from opd.inputs.models import config_of_folder, model_problems
from opd.isolation.serving import load_named

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def place_problems(places: Sequence[tuple[str, str]]) -> Iterator[Problem]:
    """Yield what is wrong with (key, path); URLs, bundled names and importable modules are left to those who resolve them."""
    for key, path in places:
        is_module = _MODULE.fullmatch(path) and not path.endswith((".py", ".yaml", ".json", ".parquet"))
        if "://" in path or is_module or Path(path).exists():
            continue
        rule = f"there is no such file or folder (looked from {Path.cwd()})"
        yield Problem(path=key, value=path, rule=rule, fix="a path that is there")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The files and folders that are looked at; models and places are (key of the spec, path)."""

    models: Sequence[tuple[str, str]]
    data: Sequence[DataSet]
    spec: AnyRunSpec  # whose rows the models must have room for
    places: Sequence[tuple[str, str]] = ()  # programs, lists and folders that the run reads

    @classmethod
    def of(cls, spec: AnyRunSpec) -> "Inputs":
        """Return the inputs of a spec."""
        models = [("model.path", spec.model.path)]
        agent = None if isinstance(spec, OpdSpec | SftSpec) else spec.agent
        places: list[tuple[str, str | None]] = [] if isinstance(spec, SftSpec) else [("reward.path", spec.reward.path)]
        if isinstance(spec, EvalSpec) and spec.eval.checkpoint is not None:
            models = []  # the checkpoint becomes the model
        if isinstance(spec, DistillationSpec):
            models += [(f"{key}.path", teacher.path) for key, teacher in spec.named_teachers.items()]
            places.append(("opd.importance.problems.pass_rates", spec.opd.importance.problems.pass_rates))
            places += [("opd.teacher_answers", path) for path in spec.opd.teacher_answers or ()]
            served = [(f"{key}.path", one.path) for key, one in spec.served_teachers.items() if one.serve]
            places += [(key, path) for key, path in served if path.startswith("/")]  # others may be names of the hub
        if isinstance(spec, SftSpec):
            places += [("sft.teacher_answers", path) for path in spec.sft.teacher_answers or ()]
        if agent is not None and agent.enable_tools:
            places += [(f"agent.{key}", getattr(agent, key)) for key in ("database_dir", "tool_config_path")]
            own = {"agent.toolset": agent.toolset, "agent.program": agent.program}
            places += [(key, source_of(name)) for key, name in own.items() if name]
        is_sft = isinstance(spec, SftSpec) and spec.sft.teacher_answers is None
        how = How(MESSAGES if is_sft else PROMPT, spec.data.columns.prompt or "", spec.data.columns.answer or "")
        data = [DataSet(key="data.val", files=spec.data.val, how=how, scorer=_scorer_of_texts(spec))]
        if not isinstance(spec, EvalSpec):
            train = DataSet(
                key="data.train",
                files=spec.data.train,
                batch_size=spec.data.train_batch_size,
                max_samples=spec.data.max_train_samples,
                how=how,
                scorer=_scorer_of_texts(spec, of_training=True),
                split=spec.data.split,
                columns=spec.prompt_columns if isinstance(spec, DistillationSpec) else (),
            )
            data.insert(0, train)
        given = [(key, path) for key, path in places if path is not None]
        return cls(models=models, data=data, places=given, spec=spec)


def _scorer_of_texts(spec: AnyRunSpec, *, of_training: bool = False) -> str:
    """Return the name of a reward function that reads ground truths as text, of the training prompts or the others.

    The name is empty where the function reads what it likes, or nothing is learnt or reported from it.
    """
    if isinstance(spec, SftSpec) or spec.reward.function in ("environment", "custom"):
        return ""
    if of_training:
        is_used = not isinstance(spec, DistillationSpec) or spec.learns_from_rewards
    else:
        is_used = isinstance(spec, EvalSpec) or spec.trainer.test_freq > 0 or spec.trainer.val_before_train
    return spec.reward.function if is_used else ""


def check_inputs(inputs: Inputs, *, origin: str = "") -> None:
    """Look at every folder and file that is on this machine; URLs and bundled names are left to those who make them local.

    A file that this process has looked at before is not read again.

    Raises:
        SpecError: with every fault found.
    """
    if problems := list(input_problems(inputs)):
        raise SpecError(problems, origin=origin)


def input_problems(inputs: Inputs) -> Iterator[Problem]:
    """Yield every fault that `check_inputs` raises."""
    spec = inputs.spec
    is_read_by_vllm = isinstance(spec, EvalSpec) and spec.rollout.name == "vllm"  # its one model, by nothing else
    yield from model_problems(inputs.models, may_be_quantized=is_read_by_vllm)
    for key, path in inputs.models:
        yield from config_problems(spec, config_of_folder(path), key)
    yield from data_problems(inputs.data)
    yield from place_problems(inputs.places)
    yield from environment_problems(spec)


def environment_problems(spec: AnyRunSpec) -> Iterator[Problem]:
    """Yield what is wrong with the environment of a run with tools: not found, or without the reward that scores it."""
    if isinstance(spec, OpdSpec | SftSpec) or (agent := spec.agent) is None or not agent.enable_tools:
        return
    is_scored = spec.reward.function == "environment"
    name = agent.toolset or DEFAULT_TOOLSET
    if agent.program is not None:
        try:
            load_named(agent.program, "_opd_program")
        except Exception as error:  # noqa: BLE001  a module may raise anything as it is imported
            rule = f"it cannot be loaded: {type(error).__name__}: {error}"
            fix = "package.module:function, or FILE.py:function"
            yield Problem(path="agent.program", value=agent.program, rule=rule, fix=fix)
    rule = ""
    if agent.program is not None and agent.toolset is None:
        rule = "agent.program has no reward of its own" if is_scored else ""
    elif agent.tool_config_path is None:
        try:
            rule = "" if load_environment(name).reward or not is_scored else no_reward(name)
        except NoEnvironment as error:
            yield Problem(path="agent.toolset", value=name, rule=str(error), fix="the name of an environment")
    elif is_scored:
        rule = "tools of agent.tool_config_path have no reward"
    if rule:
        fix = "{function: custom, path: my_reward.py}, or a scorer by name"
        yield Problem(path="reward.function", value="environment", rule=rule, fix=fix)
