"""Raw overrides of keys that earlier versions had in verl's config: people and stored runs name them, the spec has them now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from opd.config import SPEC_CLASSES, AnyRunSpec, Problem, SpecError, dump_spec, parse_tree
from opd.config.coerce import parse_value, unquote
from opd.config.errors import nearest
from opd.config.raw import RawOverride, parse_raw
from opd.config.run_config import RunConfig, RunFacts
from opd.config.sections import Agent
from opd.config.tree import field_at, set_path
from opd.config.verl_keys import ALSO_READ

_GROUPS = ("opd.", "run.")
_SPEC_PATHS = {
    "run.seed": "seed",
    "run.store": "store.url",
    "run.keep_last": "checkpoint.keep_last",
    "run.keep_every": "checkpoint.keep_every",
    "run.save_on_exit": "checkpoint.save_on_exit",
    "run.max_skipped_updates": "trainer.max_skipped_updates",
    "run.stall_floor_s": "trainer.stall_floor_s",
    "run.stall_factor": "trainer.stall_factor",
    "run.master_port": "trainer.master_port",
    "run.resume": "trainer.resume",
    "run.save_generations": "eval.save_generations",
    **{f"run.agent.{name}": f"agent.{name}" for name in Agent.model_fields},
}
_RESUME = {"true": "auto", "false": "never"}  # it was a truth value
_FACTS = {"run.id": "run_id", "run.dir": "run_dir"}


def is_former(key: str) -> bool:
    """Whether a raw override's key was one of ours in verl's config, where verl's has none now."""
    return key.startswith(_GROUPS)


def settled(spec: AnyRunSpec, run: RunFacts) -> RunConfig:
    """What the run's processes read: spec and facts with the spec's raw overrides of former keys applied.

    The spec that is stored and hashed keeps them as they were written, so that a run begun with them resumes.

    Raises:
        SpecError: a key that there never was, or a value that cannot be used.
    """
    found = list(_former(spec))
    facts: dict[str, Any] = {_FACTS[raw.key]: unquote(raw.value or "") for raw in found if raw.key in _FACTS}
    run = replace(run, **facts)
    values = [raw for raw in found if raw.key in _SPEC_PATHS]
    if not values:
        return RunConfig(spec=spec, run=run)
    problems: list[Problem] = []
    tree = dump_spec(spec)
    for raw in values:
        path, text = _SPEC_PATHS[raw.key], raw.value or ""
        field = field_at(SPEC_CLASSES[spec.kind], path)
        if field is None:
            continue  # another kind's: it had no effect
        text = _RESUME.get(text.lower(), text) if raw.key == "run.resume" else text
        if (value := parse_value(text, field, path, f"overrides {raw.key}", problems)) is not None:
            set_path(tree, path, value)
    if problems:
        raise SpecError(problems)
    return RunConfig(spec=cast(AnyRunSpec, parse_tree(tree).spec), run=run)


def _former(spec: AnyRunSpec) -> Iterator[RawOverride]:
    known = (*_SPEC_PATHS, *_FACTS, *(key for key in ALSO_READ if is_former(key)), "run.kind")
    for text in spec.overrides:
        raw = parse_raw(text)
        if raw is None or not is_former(raw.key):
            continue
        if raw.key not in known or raw.prefix == "~":
            near = nearest(raw.key, known)
            fix = f"did you mean {near}?" if near else "remove the override"
            raise SpecError([Problem(path="overrides", value=text, rule="there is no such key", fix=fix)])
        yield raw
