"""The stages of a pipeline as specs of their own; docs/howto/pipelines.md has the references `${stages.NAME.RESULT}`."""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, cast

from opd.experiment.algorithm import converted
from opd.experiment.base import ASKS, TRAINS, Kind, joined, value_at
from opd.experiment.errors import Problem, SpecError, nearest
from opd.experiment.kinds import AnyRunSpec, AnySpec, ConvertSpec, FileSpec, PipelineSpec
from opd.experiment.parse import CHART_KEYS, expand_models, parse_tree

RESULTS: dict[str, tuple[Kind, ...]] = {"checkpoint": TRAINS, "model": (*TRAINS, "convert")}
RESULTS |= {"generations": ASKS, "pass_rates": ASKS}
"""What a stage leaves, and the kinds that leave it."""
FOLDER = "stages"  # in the pipeline's run directory: the store of its stages
RANK_CPUS = 3  # of a rank's bundle in its node's placement group: verl's ResourcePoolManager.max_colocate_count
OF_A_STAGE = "stages://"  # begins the place-holder of a result that is not there yet
PIPELINES_OWN = ("name", "store", "output", "env", *CHART_KEYS)  # keys that no stage has
_MODEL_KEY = re.compile(r"(model|teacher|teachers\.[^.]+)\.path")
_REFERENCE = re.compile(r"\$\{stages\.([^}]*)\}")

Tree = dict[str, Any]


class Reference(NamedTuple):
    stage: str
    result: str

    def __str__(self) -> str:
        """Return the result's place-holder, which no reader takes for a file of this machine."""
        return f"{OF_A_STAGE}{self.stage}/{self.result}"


References = Mapping[tuple[str, str], Reference]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage; its name is the file's, or `NAME-model` for the conversion of what stage NAME has trained."""

    name: str
    tree: Mapping[str, Any]  # the whole experiment, the references in it still as text
    references: References  # by key and text

    @cached_property
    def spec(self) -> AnySpec:
        """The spec before anything has run, as far as it is known then."""
        return self.resolved(str)

    def resolved(self, value_of: Callable[[Reference], str]) -> AnySpec:
        """Return the spec with the results of earlier stages in place."""
        put = {place: value_of(reference) for place, reference in self.references.items()}
        tree = _replaced(dict(self.tree), lambda *at: put.get((at[0], at[1]), at[1]))
        try:
            return cast(AnySpec, parse_tree(tree).spec)
        except SpecError as error:
            raise SpecError(problem.below(f"stages.{self.name}") for problem in error.problems) from None


def stages_of(spec: PipelineSpec) -> tuple[Stage, ...]:
    """Return the stages in the order in which they run, each checked as far as that can be before any has run."""
    problems: list[Problem] = []
    trees = {name: _whole(spec, name, given) for name, given in _that_run(spec).items()}
    for name, key in ((name, key) for name in trees for key in PIPELINES_OWN if key in spec.stages[name]):
        problems.append(_at(name, key, None, f"`{key}` is the whole pipeline's", f"set {key} at the top"))
    for name in (name for name, tree in trees.items() if tree.get("kind") == "pipeline"):
        problems.append(_at(name, "kind", "pipeline", "a stage is one run, and no pipeline", "name its stages here"))
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
        stage = Stage(name=name, tree=trees[name], references=references[name])
        try:
            found += [stage] if stage.spec else []
        except SpecError as error:
            problems += error.problems
    served = [(one.name, given) for one in found if (given := value_at(one.spec, "teacher.serve"))]
    rule, fix = "the chart serves the teacher of a run, and of no stage", "start the server yourself: teacher.url"
    problems += [_at(name, "teacher.serve", given, rule, fix) for name, given in served]
    if problems := [*problems, *_unsaved(found), *_same_target(found)]:
        raise SpecError(problems)
    return tuple(found)


def runs_of(spec: FileSpec) -> tuple[AnySpec, ...]:
    """Return the runs that a file makes, before anything has run: itself, or its stages."""
    return tuple(stage.spec for stage in stages_of(spec)) if isinstance(spec, PipelineSpec) else (spec,)


def before_it_runs(stages: Sequence[Stage]) -> Iterator[AnySpec]:
    """Yield the stages' specs, each with the model that an earlier stage began with, which has the same shapes."""
    begun_with: dict[Reference, str] = {}
    for stage in stages:
        spec = stage.resolved(lambda reference: begun_with.get(reference, str(reference)))
        yield spec
        begun = spec.convert.checkpoint if isinstance(spec, ConvertSpec) else spec.model.path
        begun_with.update({Reference(stage.name, result): begun for result in ("checkpoint", "model")})


def _at(stage: str, key: str, value: object, rule: str, fix: str) -> Problem:
    return Problem(path=f"stages.{stage}.{key}", value=value, rule=rule, fix=fix)


def _whole(spec: PipelineSpec, name: str, stage: Tree) -> Tree:
    """Return a stage's experiment with the pipeline's keys; a conversion of a stage writes next to its checkpoint."""
    own = spec.model_dump(mode="json", exclude_none=True)
    convert = stage.get("convert") if stage.get("kind") == "convert" else None
    if isinstance(convert, dict) and _REFERENCE.search(str(convert.get("checkpoint"))):
        stage = {**stage, "convert": {"target": converted(convert["checkpoint"]), **convert}}
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
    # As often as there are stages: a skipped stage's model may be what another skipped one leaves.
    for model in (model for _ in stages for name in out for model in models[name]):
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
        value, left = f"${{stages.{text}}}", list[str]()
        for other, tree in trees.items():
            left += [f"${{stages.{other}.{key}}}" for key, kinds in RESULTS.items() if tree.get("kind") in kinds]
        near = nearest(value, left)
        rule = "a reference names a stage that is not skipped, and what a stage of its kind leaves"
        fix = f"did you mean {near}?" if near else f"what there is: {', '.join(left) or 'nothing'}"
        problems.append(_at(name, path, value, rule, fix))
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


def _in_order(references: Mapping[str, References], problems: list[Problem]) -> list[str]:
    """Return the stages in an order that does not depend on the file's."""
    waits = {name: sorted({one.stage for one in found.values()}) for name, found in sorted(references.items())}
    try:
        return list(TopologicalSorter(waits).static_order())
    except CycleError as error:
        rule = f"the stages {' -> '.join(error.args[1])} wait for each other"
        problems.append(Problem(path="stages", rule=rule, fix="take one of these references out"))
        return []


def _unsaved(stages: Sequence[Stage]) -> Iterator[Problem]:
    """Yield a problem for each stage that does not keep what a later one refers to."""
    wanted = {(ref.stage, ref.result) for stage in stages for ref in stage.references.values()}
    keys = {"checkpoint": ("trainer.save_freq", "1 or more"), "generations": ("eval.save_generations", "true")}
    for stage, result in ((stage, result) for stage in stages for result in keys if (stage.name, result) in wanted):
        key, value = keys[result]
        if (given := value_at(stage.spec, key)) in (False, -1):
            yield _at(stage.name, key, given, f"a later stage needs its {result}: it keeps none", f"set it to {value}")


def _same_target(stages: Sequence[Stage]) -> Iterator[Problem]:
    """Yield a problem for each conversion that would replace the model of an earlier one."""
    seen: dict[str, str] = {}
    for stage in stages:
        if isinstance(spec := stage.spec, ConvertSpec):
            target = (spec.convert.target or converted(spec.convert.checkpoint)).rstrip("/")
            if (other := seen.setdefault(target, stage.name)) != stage.name:
                rule = f"stage {other} converts into the same folder, and this one would replace its model"
                yield _at(stage.name, "convert.target", target, rule, "set convert.target of one of them")


class Sizes(NamedTuple):
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
