"""Places for a run on Ray's nodes, and the resources that each node lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opd.experiment.pipeline import Sizes

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
    """Return what the nodes that offer CPUs lack for the run, with each that is too small; empty where all of it finds a place.

    A node's ranks are one placement group, which takes a single node.
    """
    places, small = 0, []
    for offer in offers:
        places += int(min(offer.gpus // sizes.gpus_per_node, offer.cpus // sizes.node_cpus))
        if offer.cpus < sizes.node_cpus or offer.gpus < sizes.gpus_per_node:
            small.append(str(offer))
    if places >= sizes.num_nodes:
        return ""
    listed = "; ".join(small[:_MOST_NAMED]) + (f"; and {len(small) - _MOST_NAMED} more" if small[_MOST_NAMED:] else "")
    return f"{places} of {sizes.num_nodes} nodes with {needed(sizes)}; too small: {listed or 'none is there'}"


def needed(sizes: Sizes) -> str:
    """Return what each node that trains needs, in words."""
    devices = f"{sizes.gpus_per_node} {'GPU' if sizes.gpus_per_node == 1 else 'GPUs'} and "
    return f"{devices if sizes.device == 'cuda' else ''}{sizes.node_cpus} CPUs for its ranks"
