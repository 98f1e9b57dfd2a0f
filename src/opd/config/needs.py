"""Devices and CPUs that a run asks of each node: Ray places a run by the CPUs that verl and TransferQueue set aside."""

from __future__ import annotations

from dataclasses import dataclass

from opd.config.kinds import AnyRunSpec, ConvertSpec, FileSpec
from opd.config.pipeline import runs_of
from opd.config.raw import parse_raw

# verl's ResourcePoolManager.max_colocate_count: CPUs of a rank's bundle in its node's placement group.
RANK_CPUS = 3
# `num_cpus` of TransferQueue's two actor classes, storage unit and controller.
QUEUE_ACTOR_CPUS = 1
STORAGE_UNITS_KEY = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
# TransferQueue's own advice: two a node, so that no node's rows pass through one process. A CPU run moves little.
STORAGE_UNITS_A_NODE = 2


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a run that trains or samples."""

    device: str
    num_nodes: int
    gpus_per_node: int
    num_storage_units: int

    @property
    def node_cpus(self) -> int:
        """CPUs of a node: of its ranks, its storage units, and the queue's controller, which may be on any node."""
        units = -(-self.num_storage_units // self.num_nodes)
        return self.gpus_per_node * RANK_CPUS + (units + 1) * QUEUE_ACTOR_CPUS


def sizes_of(spec: AnyRunSpec) -> Sizes:
    """Return the sizes that a spec gives, a raw override of the queue's storage units included."""
    nodes = spec.trainer.nnodes
    given = [raw.value for text in spec.overrides if (raw := parse_raw(text)) and raw.key == STORAGE_UNITS_KEY]
    default = 1 if spec.device == "cpu" else STORAGE_UNITS_A_NODE * nodes
    units = int(given[0]) if given and given[0] and given[0].isdecimal() else default
    return Sizes(
        device=spec.device,
        num_nodes=nodes,
        gpus_per_node=spec.trainer.gpus_per_node,
        num_storage_units=units or default,
    )


def all_sizes(spec: FileSpec) -> list[Sizes]:
    """Return the sizes of each run of a file that has workers: a pipeline's stages run one after another."""
    return [sizes_of(run) for run in runs_of(spec) if not isinstance(run, ConvertSpec)]
