"""Devices and CPUs that a run asks of each node: Ray places a run by the CPUs that verl sets aside for its ranks."""

from __future__ import annotations

from dataclasses import dataclass

from opd.experiment.kinds import AnyRunSpec, ConvertSpec, FileSpec
from opd.experiment.pipeline import runs_of

# verl's ResourcePoolManager.max_colocate_count: CPUs of a rank's bundle in its node's placement group.
RANK_CPUS = 3


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a run that trains or samples."""

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
