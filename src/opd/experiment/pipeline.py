"""The stages of a pipeline as specs of their own; README.md has the references `${stages.NAME.RESULT}`."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, cast

from opd.experiment.base import ASKS, TRAINS, Kind, joined, value_at
from opd.experiment.errors import Problem, SpecError, nearest
from opd.experiment.kinds import AnyRunSpec, AnySpec, ConvertSpec, FileSpec, PipelineSpec
from opd.experiment.parse import CHART_KEYS, expand_models, parse_tree

RESULTS: dict[str, tuple[Kind, ...]] = {"checkpoint": TRAINS, "model": (*TRAINS, "convert")}
RESULTS |= {"generations": ASKS, "pass_rates": ASKS}
"""What a stage leaves, and the kinds that leave it."""
FOLDER = "stages"
"""In the pipeline's run directory: the store of its stages."""
RANK_CPUS = 3
"""CPUs of a rank's bundle in its node's placement group: verl's ResourcePoolManager.max_colocate_count."""
OF_A_STAGE = "stages://"
"""Begins the place-holder of a result that is not there yet."""
PIPELINES_OWN = ("name", "store", "output", "env", *CHART_KEYS)
"""Keys that no stage has."""
_MODEL_KEY = re.compile(r"(model|teacher|teachers\.[^.]+)\.path")
_REFERENCE = re.compile(r"\$\{stages\.([^}]*)\}")

Tree = dict[str, Any]


class Reference(NamedTuple):
    """A result of a stage."""

    stage: str
    result: str

    def __str__(self) -> str:
        """Return the result's place-holder, which no reader takes for a file of this machine."""
        return f"{OF_A_STAGE}{self.stage}/{self.result}"


ValueOf = Callable[[Reference], str]
References = Mapping[tuple[str, str], Reference]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage; its name is the file's, or `NAME-model` for the conversion of what stage NAME has trained."""

    name: str
    tree: Mapping[str, Any]  # the whole experiment, the references in it still as text
    references: References  # by key and text
    spec: AnySpec  # before anything has run, as far as it is known then

    def resolved(self, value_of: ValueOf) -> AnySpec:
        """Return the spec with the results of earlier stages in place."""
        return _parsed(self.name, self.tree, self.references, value_of)


def stages_of(spec: PipelineSpec) -> tuple[Stage, ...]:
    """Return the stages in the order in which they run, each checked as far as that can be before any has.

    SpecError has every problem found, under the keys of the pipeline's file.
    """
    problems: list[Problem] = []
    trees: dict[str, Tree] = {}
    for name, given in _that_run(spec).items():
        for key in (key for key in PIPELINES_OWN if key in given):
            problems += _at(name, key, None, f"`{key}` is the whole pipeline's", f"set {key} at the top")
        if given.get("kind") == "pipeline":
            problems += _at(name, "kind", "pipeline", "a stage is one run, and no pipeline", "name its stages here")
        trees[name] = _whole(spec, name, given)
    if not trees:
        problems.append(Problem(path="stages", rule="all of them are skipped", fix="take skip out of one"))
    if problems:
        raise SpecError(problems)
    references = {name: _references(name, trees, problems) for name in trees}
    wanted = {reference.stage for found in references.values() for reference in found.values()}
    for name in sorted(wanted - trees.keys()):
        checkpoint = f"${{stages.{name.removesuffix('-model')}.checkpoint}}"
        trees[name] = _whole(spec, name, {"kind": "convert", "convert": {"checkpoint": checkpoint}})
        references[name] = _references(name, trees, problems)
    found: list[Stage] = []
    for name in _in_order(references, problems):
        try:
            parsed = _parsed(name, trees[name], references[name], str)
        except SpecError as error:
            problems += error.problems
        else:
            found.append(Stage(name=name, tree=trees[name], references=references[name], spec=parsed))
    problems += [*_unsaved(found), *_same(found)]
    if problems:
        raise SpecError(problems)
    return tuple(found)


def runs_of(spec: FileSpec) -> tuple[AnySpec, ...]:
    """Return the runs that a file makes, before anything has run: itself, or its stages."""
    return tuple(stage.spec for stage in stages_of(spec)) if isinstance(spec, PipelineSpec) else (spec,)


def before_it_runs(stages: Sequence[Stage]) -> list[AnySpec]:
    """Return the stages' specs, each with the model that an earlier stage began with, which has the same shapes."""
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
    """Return a stage's problems under the keys of the pipeline's file."""
    return [problem.below(f"stages.{name}") for problem in problems]


def _at(stage: str, key: str, value: object, rule: str, fix: str) -> list[Problem]:
    return of_stage(stage, [Problem(path=key, value=value, rule=rule, fix=fix)])


def _whole(spec: PipelineSpec, name: str, stage: Tree) -> Tree:
    """Return a stage's experiment with what it has from the pipeline; its run is in the pipeline's folder of the store.

    A conversion of what another stage has trained writes next to the checkpoint, wherever that is by then.
    """
    own = spec.model_dump(mode="json", exclude_none=True)
    convert = stage.get("convert")
    checkpoint = convert.get("checkpoint") if isinstance(convert, dict) and stage.get("kind") == "convert" else None
    if isinstance(convert, dict) and isinstance(checkpoint, str) and _REFERENCE.search(checkpoint):
        stage = {**stage, "convert": {"target": f"{checkpoint}-huggingface", **convert}}
    return {
        **stage,
        "name": joined([spec.name, name]),
        "store": {**own["store"], "url": f"{spec.store.url.rstrip('/')}/{spec.name}/{FOLDER}"},
        "output": {"root": f"{spec.output.root.rstrip('/')}/{spec.name}/{FOLDER}"},
        "env": own["env"],
        "seed": stage.get("seed", spec.seed),
    }


def _that_run(spec: PipelineSpec) -> dict[str, Tree]:
    """Return the stages without `skip: true`; a skipped one leaves the model that it would have begun with."""
    stages = copy.deepcopy(spec.stages)
    models = {name: expand_models(tree) for name, tree in stages.items()}
    skips = {name: tree.pop("skip") for name, tree in stages.items() if isinstance(tree.get("skip"), bool)}
    out = {name: tree for name, tree in stages.items() if not skips.get(name)}
    for _ in stages:  # a skipped stage's model may be what another skipped one leaves
        for model in (model for name in out for model in models[name]):
            match = _REFERENCE.fullmatch(str(model.get("path")))
            stage, _, result = (match[1] if match else "").partition(".")
            source = stages.get(stage, {})
            begun, leaves = source.get("model"), source.get("kind") in TRAINS and result in ("checkpoint", "model")
            if stage not in out and leaves and isinstance(begun, dict):
                model |= {key: begun[key] for key in ("path", "revision") if key in begun}
    return out


def _references(name: str, trees: Mapping[str, Tree], problems: list[Problem]) -> References:
    """Return the references of a stage by their key and text; append a problem for each that names nothing."""
    found: dict[tuple[str, str], Reference] = {}

    def read(path: str, text: str) -> str:
        stage, _, result = text.partition(".")
        kind = trees.get(stage, {}).get("kind")
        result = "model" if result == "checkpoint" and _MODEL_KEY.fullmatch(path) else result
        if kind in RESULTS.get(result, ()):
            source = f"{stage}-model" if result == "model" and kind != "convert" else stage
            found[path, text] = Reference(source, result)
            return ""
        value, left = f"${{stages.{text}}}", []
        for other, tree in trees.items():
            left += [f"${{stages.{other}.{key}}}" for key, kinds in RESULTS.items() if tree.get("kind") in kinds]
        near = nearest(value, left)
        rule = "a reference names a stage that is not skipped, and what a stage of its kind leaves"
        fix = f"did you mean {near}?" if near else f"what there is: {', '.join(left) or 'nothing'}"
        problems.extend(_at(name, path, value, rule, fix))
        return ""

    _replaced(trees[name], read)
    return found


def _replaced(value: Any, put: Callable[[str, str], str], path: str = "") -> Any:
    """Return the tree with `put(key, text)` in the place of each reference's text."""
    if isinstance(value, dict):
        return {key: _replaced(item, put, f"{path}.{key}".lstrip(".")) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, put, path) for item in value]
    return _REFERENCE.sub(lambda match: put(path, match[1]), value) if isinstance(value, str) else value


def _parsed(name: str, tree: Mapping[str, Any], references: References, value_of: ValueOf) -> AnySpec:
    def put(path: str, text: str) -> str:
        return value_of(references[path, text]) if (path, text) in references else text

    try:
        return cast(AnySpec, parse_tree(_replaced(dict(tree), put)).spec)
    except SpecError as error:
        raise SpecError(of_stage(name, error.problems)) from None


def _in_order(references: Mapping[str, References], problems: list[Problem]) -> list[str]:
    """Return the stages in an order that does not depend on the file's."""
    sorter = TopologicalSorter({name: {one.stage for one in found.values()} for name, found in references.items()})
    order: list[str] = []
    try:
        sorter.prepare()
    except CycleError as error:
        rule = f"the stages {' -> '.join(error.args[1])} wait for each other"
        problems.append(Problem(path="stages", rule=rule, fix="take one of these references out"))
        return []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order += ready
        sorter.done(*ready)
    return order


def _unsaved(stages: Sequence[Stage]) -> Iterator[Problem]:
    """Yield a problem for each stage that does not keep what a later one refers to."""
    wanted = {(ref.stage, ref.result) for stage in stages for ref in stage.references.values()}
    keys = {"checkpoint": ("trainer.save_freq", "1 or more"), "generations": ("eval.save_generations", "true")}
    for name, spec in ((stage.name, stage.spec) for stage in stages):
        for result, (key, value) in keys.items():
            if (name, result) in wanted and value_at(spec, key) in (False, -1):
                rule = f"a later stage refers to its {result}, and it keeps none"
                yield from _at(name, key, value_at(spec, key), rule, f"set it to {value}")


def _same(stages: Sequence[Stage]) -> Iterator[Problem]:
    """Yield a problem for each stage that would write to the run or to the folder of an earlier one."""
    seen: dict[tuple[str, str], str] = {}
    for stage in stages:
        places = {"name": stage.spec.name}
        if isinstance(stage.spec, ConvertSpec):
            convert = stage.spec.convert
            places["convert.target"] = (convert.target or f"{convert.checkpoint}-huggingface").rstrip("/")
        for key, place in places.items():
            if (other := seen.setdefault((key, place), stage.name)) != stage.name:
                yield from _at(stage.name, key, place, f"stage {other} has the same", "give the stages different ones")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a run that trains or samples: Ray places a run by the CPUs that verl sets aside for its ranks."""

    device: str
    num_nodes: int
    gpus_per_node: int

    @property
    def node_cpus(self) -> int:
        return self.gpus_per_node * RANK_CPUS


def sizes_of(spec: AnyRunSpec) -> Sizes:
    """Return the sizes that a spec gives."""
    return Sizes(device=spec.device, num_nodes=spec.trainer.nnodes, gpus_per_node=spec.trainer.gpus_per_node)


def all_sizes(spec: FileSpec) -> list[Sizes]:
    """Return the sizes of each run of a file that has workers: a pipeline's stages run one after another."""
    return [sizes_of(run) for run in runs_of(spec) if not isinstance(run, ConvertSpec)]
