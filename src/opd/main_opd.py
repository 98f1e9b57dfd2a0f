"""`python -m opd.main_opd key=value ...`: a run from plain Hydra overrides, for people who know verl.

The command line is read as the overrides of an experiment file that holds no more than its kind. Keys that are not given
have a spec's defaults. The run is one of `opd.launch`, with its metrics, checkpoints and resume: its directory is
`trainer.experiment_name` below `trainer.default_local_dir`. `--cfg job`, `--help` and `--info` are Hydra's.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import hydra
from omegaconf import DictConfig

from opd.cluster.supervise import supervised
from opd.errors import EXIT_INTERRUPTED
from opd.experiment import AnyRunSpec, ConvertSpec, PipelineSpec, SpecError
from opd.experiment.base import DISTILS, joined
from opd.experiment.errors import Problem
from opd.experiment.load import load_text
from opd.experiment.raw import ALSO_READ, VERL_KEYS, parse_raw, unquote
from opd.experiment.verl import compute_overrides
from opd.launch import facts, start
from opd.trainer.entry import CONFIG_NAME, config_dir

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
_KIND, _NAME, _FOLDER = "run.kind", "trainer.experiment_name", "trainer.default_local_dir"
_NAMES = {path: key for key, path in reversed((*VERL_KEYS, *_SPEC_KEYS.items(), *ALSO_READ.items()))}
_NAMES |= {"name": _NAME, "output.root": _FOLDER}


def spec_of(given: Sequence[str], env: Mapping[str, str]) -> AnyRunSpec:
    """Return the spec of the run that a command line asks for.

    Args:
        given: Hydra overrides, `+actor_rollout_ref.ref.model.path` (the original's key of the teacher) among them.
        env: `TEACHER_MODEL_PATH` fills an unset teacher path.

    Raises:
        SpecError: a value cannot be used; problems name verl's keys.
    """
    kind, folder, sets, rest = "opd", "outputs", [], []
    for text in given:
        raw = parse_raw(text)
        if raw is not None and raw["key"] == _KIND:
            kind = raw["value"] or ""
        elif raw is not None and raw["key"] in _SPEC_KEYS and raw["prefix"] != "~":
            sets.append(f"{_SPEC_KEYS[raw['key']]}={raw['value']}")
        else:
            rest.append(text)
            if raw is not None and raw["key"] == _NAME:
                sets.append(f"name={_run_name(unquote(raw['value'] or ''))}")
            elif raw is not None and raw["key"] == _FOLDER:
                folder = unquote(raw["value"] or "")
    sets += [f"output.root={folder}", f"store.url={folder}"]  # one place holds all of the run
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


def _run_name(experiment: str) -> str:
    """Return verl's name of an experiment with the characters that a run's name may have: `opd_thinking` -> `opd-thinking`."""
    name = joined([experiment])
    return name if name[:1].isalpha() else joined(["run", experiment])


def _in_verls_keys(problem: Problem) -> Problem:
    key = _NAMES.get(problem.path, problem.path)
    fix = problem.fix.replace(problem.path, key) if problem.path else problem.fix
    if problem.path == "teacher.path":
        fix = "set it, TEACHER_MODEL_PATH or the original's key +actor_rollout_ref.ref.model.path"
    return replace(problem, path=key, fix=fix)


@hydra.main(config_path=config_dir(), config_name=CONFIG_NAME, version_base=None)
def _show(config: DictConfig) -> None:
    sys.exit("opd.main_opd: of Hydra's flags it takes those that print, such as --cfg job, --help and --info")


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code (2: a value cannot be used)."""
    given = [word for word in words if parse_raw(word) is not None]
    flags = [word for word in words if parse_raw(word) is None]
    if {"-h", "--help", "--hydra-help", "--version"} & set(flags):
        return _answer(flags)
    try:
        spec = spec_of(given, os.environ)
    except SpecError as error:
        print(f"opd.main_opd: {error}", file=sys.stderr)
        return error.exit_code
    if flags:
        return _answer([*flags, *compute_overrides(spec, run=facts(spec))])
    return supervised(lambda: start(spec, origin="command line"))


def _answer(words: Sequence[str]) -> int:
    """Let Hydra answer flags."""
    sys.argv[1:] = words
    _show()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # before the run was started
        sys.exit(EXIT_INTERRUPTED)
