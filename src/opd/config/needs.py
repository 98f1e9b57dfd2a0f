"""What a run asks of its nodes, derived in one place from its sizes: GPUs, the CPUs that Ray sets aside, memory.

`opd.launch` waits for it, the charts make their requests from it (their templates multiply the same table by the same
counts), and charts, tool and launch refuse less. Memory is what the processes take before a model is loaded (`least_gib`)
and, in the charts' defaults, room beside it (`room_gib`): nobody knows the model before it is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from opd.config.kinds import AnyRunSpec, AnySpec, ConvertSpec, DistillationSpec, FileSpec, GrpoSpec, SftSpec
from opd.config.pipeline import runs_of

# verl's ResourcePoolManager.max_colocate_count: CPUs of a rank's bundle in its node's placement group.
RANK_CPUS = 3


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of process of a run.

    Attributes:
        name: what it is, for people, in the plural.
        per: what there is one for: a key of `Sizes.counts`.
        cpus: CPUs that Ray sets aside for one as long as it lives; they are slots, not load.
        least_gib: host memory of one, in GiB, without a model.
        room_gib: GiB beside it that a chart's default request has for one.
    """

    name: str
    per: str
    cpus: int = 0
    least_gib: float = 0.0
    room_gib: float = 0.0


# On a node that trains. Rollout and reward workers and servers ask Ray for nothing. Memory as measured on the CPU with tiny models (a rank and its server 0.9 GiB, the others 0.4 to 0.5); a
# GPU's is an estimate for CUDA, NCCL and vLLM's processes, and its room holds the weights and moments of an 8B model,
# spread over eight GPUs, while they are off the device; a copy of them is what `checkpoint.overlap` writes from.
WORKER_PARTS = (
    Part(name="ranks", per="rank", cpus=RANK_CPUS, least_gib=1.0, room_gib=1.0),
    Part(name="rollout workers", per="rollout worker", least_gib=0.5, room_gib=0.5),
    Part(name="reward workers", per="reward worker", least_gib=0.5, room_gib=0.5),
    Part(name="GPUs", per="gpu", least_gib=4.0, room_gib=16.0),
    Part(name="copies of checkpoints", per="copy", room_gib=12.0),
    Part(name="Ray nodes", per="node", least_gib=0.5, room_gib=1.5),
)
# On the head, which offers Ray no CPU: these are for the scheduler of Kubernetes.
HEAD_PARTS = (
    Part(name="drivers", per="node", cpus=1, least_gib=1.5, room_gib=8.5),
    Part(name="Ray heads", per="node", cpus=1, least_gib=1.0, room_gib=3.0),
)
# A conversion is one process on the head; its room holds an 8B model twice, in fp32 and as it is written.
CONVERT_PARTS = (
    Part(name="conversions", per="node", cpus=3, least_gib=1.5, room_gib=56.5),
    Part(name="Ray heads", per="node", cpus=1, least_gib=1.0, room_gib=3.0),
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the needs of a run that trains or samples follow from."""

    device: str
    num_nodes: int
    gpus_per_node: int
    num_rollout_workers: int
    num_reward_workers: int
    overlaps_saves: bool

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many of each there are on the fullest node: what is spread over the nodes is spread evenly."""
        gpus = self.gpus_per_node if self.device == "cuda" else 0
        return {
            "node": 1,
            "rank": self.gpus_per_node,
            "gpu": gpus,
            "copy": gpus if self.overlaps_saves else 0,
            "rollout worker": -(-self.num_rollout_workers // self.num_nodes),
            "reward worker": -(-self.num_reward_workers // self.num_nodes),
        }


@dataclass(frozen=True, kw_only=True)
class NodeNeeds:
    """What one node needs.

    Attributes:
        gpus: ranks, each with a GPU, or with a logical one on the CPU.
        on_gpu: whether they are real GPUs.
        cpus: CPUs, whole ones as Ray counts them.
        cpus_by_part: `drivers 1, Ray heads 1`.
        least_gib: GiB of memory below which its processes do not fit.
        memory_gib: GiB of memory with room for models and rows.
    """

    gpus: int
    on_gpu: bool
    cpus: int
    cpus_by_part: str
    least_gib: float
    memory_gib: float


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a run, or a pipeline, needs: `worker` on each of `num_nodes` nodes (None for a conversion), `head` on the head."""

    num_nodes: int
    worker: NodeNeeds | None
    head: NodeNeeds


def needs(spec: FileSpec) -> Needs:
    """What a run of the spec needs of the nodes of its Ray cluster; a pipeline, of each what its most demanding stage does."""
    found = [_needs_of_run(run) for run in runs_of(spec)]
    workers = [each.worker for each in found if each.worker is not None]
    return Needs(
        num_nodes=max(each.num_nodes for each in found),
        worker=_greatest(workers) if workers else None,
        head=_greatest([each.head for each in found]),
    )


def _needs_of_run(spec: AnySpec) -> Needs:
    if isinstance(spec, ConvertSpec):
        return Needs(num_nodes=0, worker=None, head=_on_one_node(CONVERT_PARTS))
    sizes = sizes_of(spec)
    return Needs(num_nodes=sizes.num_nodes, worker=worker_needs(sizes), head=_on_one_node(HEAD_PARTS))


def worker_needs(sizes: Sizes) -> NodeNeeds:
    """What each of the nodes that train needs."""
    return _sum(WORKER_PARTS, sizes.counts, gpus=sizes.gpus_per_node, on_gpu=sizes.device == "cuda")


def sizes_of(spec: AnyRunSpec) -> Sizes:
    """Return the sizes that a spec gives."""
    trainer = spec.trainer
    return Sizes(
        device=spec.device,
        num_nodes=trainer.nnodes,
        gpus_per_node=trainer.gpus_per_node,
        num_rollout_workers=0 if isinstance(spec, SftSpec) else spec.rollout.num_agent_workers,
        num_reward_workers=0 if isinstance(spec, SftSpec) else spec.reward.num_workers,
        overlaps_saves=isinstance(spec, SftSpec | GrpoSpec | DistillationSpec) and spec.checkpoint.overlap,
    )


def _on_one_node(parts: tuple[Part, ...]) -> NodeNeeds:
    return _sum(parts, {"node": 1}, gpus=0, on_gpu=False)


def _sum(parts: Sequence[Part], counts: Mapping[str, int], *, gpus: int, on_gpu: bool) -> NodeNeeds:
    cpus = {part.name: part.cpus * counts[part.per] for part in parts}
    least_gib = sum(part.least_gib * counts[part.per] for part in parts)
    return NodeNeeds(
        gpus=gpus,
        on_gpu=on_gpu,
        cpus=sum(cpus.values()),
        cpus_by_part=", ".join(f"{name} {number}" for name, number in cpus.items() if number),
        least_gib=least_gib,
        memory_gib=least_gib + sum(part.room_gib * counts[part.per] for part in parts),
    )


def _greatest(found: Sequence[NodeNeeds]) -> NodeNeeds:
    """The most of each: they run one after another."""
    widest = max(found, key=lambda each: each.cpus)
    return NodeNeeds(
        gpus=max(each.gpus for each in found),
        on_gpu=any(each.on_gpu for each in found),
        cpus=widest.cpus,
        cpus_by_part=widest.cpus_by_part,
        least_gib=max(each.least_gib for each in found),
        memory_gib=max(each.memory_gib for each in found),
    )
