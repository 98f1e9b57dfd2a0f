"""`python -m opd.main_opd key=value ...`: on-policy distillation with plain Hydra overrides, for people who know verl.

What is not given has a spec's default, in verl's keys: the command line is read as the overrides of an experiment file
that holds no more than its kind. There is no run directory, and so no resume: verl's own `trainer.default_local_dir`
and `trainer.resume_mode` count. Flags (`--cfg job`, `--help`) are Hydra's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import hydra
from omegaconf import DictConfig

from opd.config import AnyRunSpec, ConvertSpec, PipelineSpec, SpecError
from opd.config.base import DISTILS
from opd.config.errors import Problem
from opd.config.load import load_text
from opd.config.raw import ALSO_READ, VERL_KEYS, parse_raw
from opd.config.run_config import KEY, RunConfig, RunFacts
from opd.config.verl import compute_overrides
from opd.errors import RunError, Unfit
from opd.trainer.entry import CONFIG_NAME, check_installed, config_dir, run_config, set_process_environment

# Where the original's config for plain Hydra has other values than its scripts, whose values are a spec's.
_ORIGINAL = (
    "opd.chunk_size=512",
    "actor_rollout_ref.rollout.val_kwargs.n=1",
    "actor_rollout_ref.rollout.val_kwargs.temperature=0.7",
    "trainer.val_before_train=true",
)
# verl's keys that decide defaults or rules of a spec and that it does not carry unchanged.
_SPEC_KEYS = {
    "actor_rollout_ref.model.override_config.attn_implementation": "model.attn_implementation",
    "actor_rollout_ref.rollout.name": "rollout.name",
    "data.apply_chat_template_kwargs.enable_thinking": "data.enable_thinking",
    "reward.custom_reward_function.reward_kwargs.function": "reward.function",
    "reward.custom_reward_function.reward_kwargs.timeout_s": "reward.timeout_s",
    "run.agent.database_dir": "agent.database_dir",
}
_KIND = "run.kind"
_HELP = {"-h", "--help", "--hydra-help", "--version"}
_NAMES = {path: key for key, path in reversed((*VERL_KEYS, *_SPEC_KEYS.items(), *ALSO_READ.items()))}


def spec_of(given: Sequence[str], env: Mapping[str, str]) -> AnyRunSpec:
    """The spec of the run that a command line asks for.

    Args:
        given: Hydra overrides, `+actor_rollout_ref.ref.model.path` (the original's key of the teacher) among them.
        env: `TEACHER_MODEL_PATH` fills an unset teacher path.

    Raises:
        SpecError: a value cannot be used; problems name verl's keys.
    """
    kind, sets, rest = "opd", [], []
    for text in given:
        raw = parse_raw(text)
        if raw is not None and raw.key == _KIND:
            kind = raw.value or ""
        elif raw is not None and raw.key in _SPEC_KEYS and raw.prefix != "~":
            sets.append(f"{_SPEC_KEYS[raw.key]}={raw.value}")
        else:
            rest.append(text)
    teacher = {name: value for name in ("TEACHER_MODEL_PATH",) if (value := env.get(name))}
    original = [text for text in _ORIGINAL if kind in DISTILS or not text.startswith("opd.")]
    try:
        spec = load_text(f"kind: {kind}\n", env=teacher, sets=sets, overrides=[*original, *rest]).spec
    except SpecError as error:
        raise SpecError(map(_in_verls_keys, error.problems), origin="command line") from error
    if isinstance(spec, ConvertSpec | PipelineSpec):
        rule, fix = "this starts one run that trains or samples", f"use python -m opd.launch with a file of kind {kind}"
        raise SpecError([Problem(path=_KIND, value=kind, rule=rule, fix=fix)], origin="command line")
    return spec


def facts(env: Mapping[str, str]) -> RunFacts:
    """Of a run without a directory; `RAY_ADDRESS` says that there is a Ray cluster."""
    return RunFacts(run_id="local", run_dir=None, in_ray_cluster="RAY_ADDRESS" in env)


def _in_verls_keys(problem: Problem) -> Problem:
    key = _NAMES.get(problem.path, problem.path)
    fix = problem.fix.replace(problem.path, key) if problem.path else problem.fix
    if problem.path == "teacher.path":
        fix = "set it, TEACHER_MODEL_PATH or the original's key +actor_rollout_ref.ref.model.path"
    return replace(problem, path=key, fix=fix)


def _run(config: DictConfig, ours: RunConfig) -> None:
    try:
        config[KEY] = ours.text()
        check_installed(config)
        run_config(config)
    except (
        RunError,
        SpecError,
        Unfit,
    ) as error:  # here: Hydra makes an exit code of 1 of whatever leaves this function
        sys.exit(_said(error))


def _said(error: RunError | SpecError | Unfit) -> int:
    print(f"opd.main_opd: {error}", file=sys.stderr)
    return error.exit_code


def main(words: Sequence[str]) -> int:
    """Compose the config from the command line and run it; returns the exit code (2: a value cannot be used)."""
    given = [word for word in words if parse_raw(word) is not None]
    flags = [word for word in words if parse_raw(word) is None]
    ours: RunConfig | None = None
    if not _HELP & set(flags):
        try:
            spec, run = spec_of(given, os.environ), facts(os.environ)
            ours = RunConfig(spec=spec, run=run)
        except SpecError as error:
            return _said(error)
        given = compute_overrides(spec, run=run)
        set_process_environment(spec.device)

    @hydra.main(config_path=config_dir(), config_name=CONFIG_NAME, version_base=None)
    def run_composed(config: DictConfig) -> None:
        assert ours is not None  # Hydra answers the flags above by itself
        _run(config, ours)

    sys.argv[1:] = [*flags, *given]
    run_composed()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
