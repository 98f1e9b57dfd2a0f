"""Places for a run on Ray's nodes, and the resources that each node lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opd.config.needs import QUEUE_ACTOR_CPUS, RANK_CPUS, Sizes

_MOST_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class Offer:
    """CPUs and devices of one Ray node: all of them, or those that are free."""

    node: str
    cpus: float
    gpus: float

    @classmethod
    def of(cls, node: str, resources: dict[str, float]) -> Offer:
        """Read Ray's table of a node."""
        return cls(node=node, cpus=resources.get("CPU", 0.0), gpus=resources.get("GPU", resources.get("NPU", 0.0)))

    def __str__(self) -> str:
        return f"{self.node} {self.gpus:g} GPUs, {self.cpus:g} CPUs"


def has_devices(sizes: Sizes, offers: Sequence[Offer]) -> bool:
    """Return True if the devices alone suffice."""
    return sum(offer.gpus // sizes.gpus_per_node for offer in offers) >= sizes.num_nodes


def shortage(sizes: Sizes, offers: Sequence[Offer]) -> str:
    """Return what the nodes lack for the run, with each node that is too small; empty if everything has a place."""
    ranks, queue = _cpus(sizes, offers)
    places, small = 0, []
    for offer in offers:
        places += max(0, int(min(offer.gpus // sizes.gpus_per_node, (offer.cpus - queue) // ranks)))
        if offer.cpus < queue + ranks or offer.gpus < sizes.gpus_per_node:
            small.append(str(offer))
    if places >= sizes.num_nodes and all(offer.cpus >= queue for offer in offers):
        return ""
    listed = "; ".join(small[:_MOST_NAMED]) + (f"; and {len(small) - _MOST_NAMED} more" if small[_MOST_NAMED:] else "")
    return f"{places} of {sizes.num_nodes} nodes with {needed(sizes, offers)}; too small: {listed or 'none is there'}"


def needed(sizes: Sizes, offers: Sequence[Offer] = ()) -> str:
    """Return the needs of each training node in words; without known nodes, of each of `sizes.num_nodes`."""
    ranks, queue = _cpus(sizes, offers)
    devices = f"{sizes.gpus_per_node} {'GPU' if sizes.gpus_per_node == 1 else 'GPUs'} and "
    return (
        f"{devices if sizes.device == 'cuda' else ''}{ranks + queue} CPUs "
        f"(ranks {ranks}, storage units and controller of the queue {queue})"
    )


def _cpus(sizes: Sizes, offers: Sequence[Offer]) -> tuple[int, int]:
    """Return the CPUs of a node for its ranks, and for the queue.

    A node's ranks are one placement group on a single node. The queue's storage units are bound to the nodes in turn,
    and its controller to any node. Each node must have room for its units and the controller.
    """
    # While nodes are missing, each is measured as if all were there.
    num_sharing = len(offers) if has_devices(sizes, offers) else max(sizes.num_nodes, len(offers))
    units = -(-sizes.num_storage_units // num_sharing)
    return sizes.gpus_per_node * RANK_CPUS, (units + 1) * QUEUE_ACTOR_CPUS
