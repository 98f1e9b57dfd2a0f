"""The stages of a pipeline as specs of their own; README.md has the references `${stages.NAME.RESULT}` and their meaning."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

from opd.config.algorithm import Eval
from opd.config.base import ASKS, TRAINS, Kind, joined
from opd.config.errors import Problem, SpecError, nearest
from opd.config.kinds import AnySpec, ConvertSpec, FileSpec, PipelineSpec
from opd.config.parse import CHART_KEYS, expand_models, parse_tree
from opd.config.running import Trainer

RESULTS: dict[str, tuple[Kind, ...]] = {
    "checkpoint": TRAINS,
    "model": (*TRAINS, "convert"),
    "generations": ASKS,
    "pass_rates": ASKS,
}
"""What a stage leaves, and the kinds that leave it."""
SKIP = "skip"
"""The one key that a stage has beside those of its experiment."""
FOLDER = "stages"
"""In the pipeline's run directory: the store of its stages."""
_MODEL_KEY = re.compile(r"(model|teacher|teachers\.[^.]+)\.path")
_REFERENCE = re.compile(r"\$\{stages\.([^}]*)\}")
OF_A_STAGE = "stages://"
"""Begins what stands for a result that is not there yet."""
PIPELINES_OWN = ("name", "store", "output", "env", *CHART_KEYS)
"""Keys that no stage has."""


@dataclass(frozen=True)
class Reference:
    """A result of a stage."""

    stage: str
    result: str

    def __str__(self) -> str:
        """What stands for it until it is there: no reader takes it for a file of this machine."""
        return f"{OF_A_STAGE}{self.stage}/{self.result}"


ValueOf = Callable[[Reference], str]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage.

    Attributes:
        name: as in the file; `NAME-model` for the conversion of what stage NAME has trained.
        tree: the whole experiment, the references in it still as text.
        references: those in it, by their texts.
        spec: the experiment before anything has run, as far as it is known then.
    """

    name: str
    tree: Mapping[str, Any]
    references: Mapping[tuple[str, str], Reference]
    spec: AnySpec

    def resolved(self, value_of: ValueOf) -> AnySpec:
        """The spec with the results of earlier stages in place.

        Raises:
            SpecError: a value cannot be used.
        """
        return _parsed(self.name, self.tree, self.references, value_of)


def stages_of(spec: PipelineSpec) -> tuple[Stage, ...]:
    """The stages in the order in which they run, each checked as far as that can be before any has.

    Raises:
        SpecError: with every problem found, under the keys of the pipeline's file.
    """
    problems: list[Problem] = []
    trees: dict[str, dict[str, Any]] = {}
    stages = copy.deepcopy(spec.stages)
    for stage in stages.values():
        expand_models(stage)
    for name, given in _that_run(stages, problems).items():
        problems += [
            Problem(path=f"stages.{name}.{key}", rule=f"`{key}` is the whole pipeline's", fix=f"set {key} at the top")
            for key in PIPELINES_OWN
            if key in given
        ]
        if given.get("kind") == "pipeline":
            rule = "a stage is one run, and no pipeline"
            problems.append(
                Problem(path=f"stages.{name}.kind", value="pipeline", rule=rule, fix="name its stages here")
            )
        trees[name] = {**_with_target(given), **_shared(spec, name), "seed": given.get("seed", spec.seed)}
    if problems:
        raise SpecError(problems)
    skipped = spec.stages.keys() - trees.keys()
    references = {name: _references(name, tree, trees, skipped, problems) for name, tree in trees.items()}
    for name in sorted({ref.stage for found in references.values() for ref in found.values()} - trees.keys()):
        convert = {"checkpoint": f"${{stages.{name.removesuffix('-model')}.checkpoint}}"}
        trees[name] = {**_with_target({"kind": "convert", "convert": convert}), **_shared(spec, name)}
        references[name] = _references(name, trees[name], trees, skipped, problems)
    found: list[Stage] = []
    for name in _in_order(references, problems):
        try:
            parsed = _parsed(name, trees[name], references[name], str)
        except SpecError as error:
            problems += error.problems
            continue
        found.append(Stage(name=name, tree=trees[name], references=references[name], spec=parsed))
    problems += _unsaved(found)
    by_run = {stage.spec.name: stage.name for stage in found}
    problems += [
        Problem(
            path=f"stages.{s.name}",
            rule=f"its run {s.spec.name} would be that of stage {by_run[s.spec.name]} too",
            fix="rename it",
        )
        for s in found
        if by_run[s.spec.name] != s.name
    ]
    problems += _written_twice(found)
    if problems:
        raise SpecError(problems)
    return tuple(found)


def runs_of(spec: FileSpec) -> tuple[AnySpec, ...]:
    """The runs that a file makes, before anything has run: itself, or its stages."""
    return tuple(stage.spec for stage in stages_of(spec)) if isinstance(spec, PipelineSpec) else (spec,)


def before_it_runs(stages: Sequence[Stage]) -> list[AnySpec]:
    """The stages' specs with each model that a stage leaves replaced by the one it began with, which has the same shapes."""
    begun_with: dict[str, str] = {}

    def value_of(reference: Reference) -> str:
        return begun_with[reference.stage] if reference.result in ("checkpoint", "model") else str(reference)

    out = []
    for stage in stages:
        spec = stage.resolved(value_of)
        begun_with[stage.name] = spec.convert.checkpoint if isinstance(spec, ConvertSpec) else spec.model.path
        out.append(spec)
    return out


def of_stage(name: str, problems: Sequence[Problem]) -> list[Problem]:
    """A stage's problems under the keys of the pipeline's file."""
    return [replace(problem, path=f"stages.{name}.{problem.path}".rstrip(".")) for problem in problems]


def _shared(spec: PipelineSpec, stage: str) -> dict[str, Any]:
    """What a stage's experiment has from the pipeline; its run lies in the pipeline's folder of the store."""
    own = spec.model_dump(mode="json", exclude_none=True)
    return {
        "name": joined([spec.name, stage]),
        "store": {**own["store"], "url": f"{spec.store.url.rstrip('/')}/{spec.name}/{FOLDER}"},
        "output": {"root": f"{spec.output.root.rstrip('/')}/{spec.name}/{FOLDER}"},
        "env": own["env"],
    }


def _that_run(stages: Mapping[str, Mapping[str, Any]], problems: list[Problem]) -> dict[str, dict[str, Any]]:
    """The stages that are not skipped, each with the models that skipped ones would have begun with in their place."""
    skipped = {name for name, tree in stages.items() if tree.get(SKIP, False) is True}
    problems += [
        Problem(path=f"stages.{name}.{SKIP}", value=tree[SKIP], rule="it is true or false", fix="true, or no such key")
        for name, tree in stages.items()
        if not isinstance(tree.get(SKIP, False), bool)
    ]
    if skipped == stages.keys():
        problems.append(Problem(path="stages", rule="all of them are skipped", fix="take skip out of one"))

    def begun(model: Any, *, behind: tuple[str, ...] = ()) -> Any:
        """A model section, or what stands there, without references to skipped stages that train."""
        path = model.get("path") if isinstance(model, Mapping) else None
        match = _REFERENCE.fullmatch(path) if isinstance(path, str) else None
        stage, _, result = match[1].partition(".") if match else ("", "", "")
        if stage not in skipped or result not in ("checkpoint", "model") or stages[stage].get("kind") not in TRAINS:
            return model
        if stage in behind:
            rule = f"the stages {' -> '.join((*behind, stage))} wait for each other"
            problems.append(Problem(path="stages", rule=rule, fix="take one of these references out"))
            return model
        before = begun(stages[stage].get("model"), behind=(*behind, stage))
        origin = (
            {key: before[key] for key in ("path", "revision") if key in before} if isinstance(before, Mapping) else {}
        )
        return {**model, **origin}

    def filled(tree: Mapping[str, Any]) -> dict[str, Any]:
        out = {key: begun(value) if key in ("model", "teacher") else value for key, value in tree.items()}
        if isinstance(teachers := out.get("teachers"), Mapping):
            out["teachers"] = {name: begun(teacher) for name, teacher in teachers.items()}
        out.pop(SKIP, None)
        return out

    return {name: filled(tree) for name, tree in stages.items() if name not in skipped}


def _with_target(stage: dict[str, Any]) -> dict[str, Any]:
    """A stage that converts what another has trained says where to: beside it in the store, wherever that is by then."""
    convert = stage.get("convert")
    if stage.get("kind") != "convert" or not isinstance(convert, dict):
        return stage
    checkpoint = convert.get("checkpoint")
    if not isinstance(checkpoint, str) or not _REFERENCE.search(checkpoint):
        return stage
    return {**stage, "convert": {"target": f"{checkpoint}-huggingface", **convert}}


def _references(
    name: str,
    tree: Mapping[str, Any],
    trees: Mapping[str, Mapping[str, Any]],
    skipped: Collection[str],
    problems: list[Problem],
) -> dict[tuple[str, str], Reference]:
    """The references of a stage, by the key that they stand at and their text."""
    found: dict[tuple[str, str], Reference] = {}

    def read(path: str, text: str) -> str:
        stage, _, result = text.partition(".")
        kind = trees.get(stage, {}).get("kind")
        if result == "checkpoint" and _MODEL_KEY.fullmatch(path):
            result = "model"
        if kind in RESULTS.get(result, ()):
            own = result == "model" and kind != "convert"
            found[path, text] = Reference(f"{stage}-model" if own else stage, result)
            return ""
        if stage in skipped:
            value = f"${{stages.{text}}}"
            rule = f"stage {stage} is skipped and leaves nothing that could stand here"
            fix = f"take skip out of stages.{stage}, skip this stage too, or write what stands here instead"
            problems.append(Problem(path=f"stages.{name}.{path}", value=value, rule=rule, fix=fix))
            return ""
        left = [f"${{stages.{other}.{key}}}" for other, tree in trees.items() for key in _left_by(tree.get("kind"))]
        near = nearest(f"${{stages.{text}}}", left)
        fix = f"did you mean {near}?" if near else f"what there is: {', '.join(left) or 'nothing'}"
        rule = "a reference names a stage and what a stage of its kind leaves"
        value = f"${{stages.{text}}}"
        problems.append(Problem(path=f"stages.{name}.{path}", value=value, rule=rule, fix=fix))
        return ""

    _replaced(tree, read)
    return found


def _left_by(kind: object) -> list[str]:
    return [result for result, kinds in RESULTS.items() if kind in kinds]


def _replaced(value: Any, put: Callable[[str, str], str], path: str = "") -> Any:
    """The tree with `put(key, text)` in the place of each reference's text."""
    if isinstance(value, dict):
        return {key: _replaced(item, put, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, put, path) for item in value]
    return _REFERENCE.sub(lambda match: put(path, match[1]), value) if isinstance(value, str) else value


def _parsed(
    name: str, tree: Mapping[str, Any], references: Mapping[tuple[str, str], Reference], value_of: ValueOf
) -> AnySpec:
    def put(path: str, text: str) -> str:
        return value_of(references[path, text]) if (path, text) in references else text

    try:
        return cast(AnySpec, parse_tree(_replaced(dict(tree), put)).spec)
    except SpecError as error:
        raise SpecError(of_stage(name, error.problems)) from None


def _in_order(references: Mapping[str, Mapping[tuple[str, str], Reference]], problems: list[Problem]) -> list[str]:
    needed = {name: {reference.stage for reference in found.values()} for name, found in references.items()}
    sorter = TopologicalSorter(needed)
    try:
        sorter.prepare()
    except CycleError as error:
        rule = f"the stages {' -> '.join(error.args[1])} wait for each other"
        problems.append(Problem(path="stages", rule=rule, fix="take one of these references out"))
        return []
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order += ready
        sorter.done(*ready)
    return order


def _written_twice(stages: Sequence[Stage]) -> Iterator[Problem]:
    """A problem for each conversion of the file into a folder that another stage writes, of the file or put in by itself."""
    by_target: dict[str, str] = {}
    for stage in sorted(stages, key=lambda stage: "-" not in stage.name):  # only those put in have one in their names
        target = stage.spec.convert.target if isinstance(stage.spec, ConvertSpec) else None
        if target and (first := by_target.setdefault(target, stage.name)) != stage.name:
            yield Problem(
                path=f"stages.{stage.name}.convert.target",
                value=target,
                rule=f"stage {first} writes the same folder",
                fix="name another folder, or take what that stage leaves",
            )


def _unsaved(stages: Sequence[Stage]) -> Iterator[Problem]:
    """A problem for each stage that a later one refers to for what it is told not to keep."""
    wanted = {(ref.stage, ref.result) for stage in stages for ref in stage.references.values()}
    for stage in stages:
        trainer, asked = (getattr(stage.spec, section, None) for section in ("trainer", "eval"))
        if isinstance(trainer, Trainer) and (stage.name, "checkpoint") in wanted and trainer.save_freq <= 0:
            yield Problem(
                path=f"stages.{stage.name}.trainer.save_freq",
                value=trainer.save_freq,
                rule="a later stage refers to its checkpoint, and it saves none",
                fix="set it to 1 or more: the last step is always saved",
            )
        if isinstance(asked, Eval) and (stage.name, "generations") in wanted and not asked.save_generations:
            yield Problem(
                path=f"stages.{stage.name}.eval.save_generations",
                value=False,
                rule="a later stage refers to its answers, and it does not keep them",
                fix="set it to true",
            )
