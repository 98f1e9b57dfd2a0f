"""The way from a spec to verl: one pure computation of Hydra overrides."""

from opd.overrides.compute import compute_overrides
from opd.overrides.facts import RunFacts
from opd.overrides.hydra_text import hydra_value

__all__ = ["RunFacts", "compute_overrides", "hydra_value"]
