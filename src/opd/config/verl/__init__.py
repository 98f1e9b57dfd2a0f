"""The way from a spec to verl: one pure computation of Hydra overrides."""

from opd.config.run_config import RunFacts
from opd.config.verl.hydra_text import hydra_value
from opd.config.verl.overrides import compute_overrides

__all__ = ["RunFacts", "compute_overrides", "hydra_value"]
