"""The validated spec and the facts of a start, which each process of a run reads from one text in verl's config."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

from opd.experiment import kinds
from opd.experiment.sections import Agent, Checkpoint

KEY = "opd"  # the one key of verl's config that is ours


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts of one start that the spec does not hold; paths are local folders of what was fetched."""

    run_id: str  # the name people see; prefix in the store
    run_dir: str
    in_ray_cluster: bool = False  # sizes given to `ray.init` would raise
    model_path: str | None = None
    teacher_paths: dict[str, str] = field(default_factory=dict)  # by the keys of `named_teachers`
    database_dir: str | None = None
    valid_vocab: int = 0  # leading ids that mean the same token to all models
    student_vocab: int = 0  # ids of its tokenizer, if it has more than `valid_vocab`
    teacher_vocab: int = 0


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run's spec and facts; each process reads them with `of` from the config that it has."""

    spec: kinds.AnyRunSpec
    run: RunFacts

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "RunConfig":
        """Read verl's config, or a part of it that has a copy."""
        return _read(config[KEY])

    def tree(self) -> dict[str, Any]:
        return {"spec": kinds.dump_spec(self.spec), "run": asdict(self.run)}

    def text(self) -> str:
        """Return the JSON that `of` reads, in which OmegaConf finds no interpolation."""
        return kinds.canonical_json(self.tree()).replace("$", r"\u0024")

    def with_facts(self, **facts: Any) -> "RunConfig":
        return replace(self, run=replace(self.run, **facts))

    @property
    def distillation(self) -> kinds.OpdSpec | kinds.OpdAgentSpec | None:
        return self.spec if isinstance(self.spec, kinds.OpdSpec | kinds.OpdAgentSpec) else None

    @property
    def trained(self) -> kinds.TrainSpec:
        assert not isinstance(self.spec, kinds.EvalSpec)  # an evaluation starts no update
        return self.spec

    @property
    def sampling(self) -> kinds.AnySamplingSpec:
        assert not isinstance(self.spec, kinds.SftSpec)  # nothing that rolls out is started for it
        return self.spec

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoints that stay; the defaults where the run saves none."""
        return getattr(self.spec, "checkpoint", Checkpoint())

    @property
    def agent(self) -> Agent | None:
        return getattr(self.spec, "agent", None)

    @property
    def teacher_paths(self) -> dict[str, str]:
        teachers = self.distillation.named_teachers if self.distillation else {}
        return {key: self.run.teacher_paths.get(key, teacher.path) for key, teacher in teachers.items()}

    @property
    def database_dir(self) -> str | None:
        return self.run.database_dir or (self.agent.database_dir if self.agent else None)


@lru_cache(maxsize=8)
def _read(text: str) -> RunConfig:
    tree = json.loads(text)
    spec = kinds.SPEC_CLASSES[tree["spec"]["kind"]].model_validate_json(json.dumps(tree["spec"]))
    return RunConfig(spec=cast(kinds.AnyRunSpec, spec), run=RunFacts(**tree["run"]))
