"""The experiment spec: one strict, torch-free schema that trainer, charts and tool share.

loaded = load_spec("exp.yaml", env=os.environ, sets=["seed=7"])
loaded.spec.data.train_batch_size
"""

from opd.experiment.base import FILE_KINDS, KINDS, Kind
from opd.experiment.canonical import canonical_json, dump_spec, identity, spec_hash
from opd.experiment.environment import VARIABLES
from opd.experiment.errors import Problem, SpecError
from opd.experiment.kinds import (
    SPEC_CLASSES,
    AnyRunSpec,
    AnySamplingSpec,
    AnySpec,
    BaseSpec,
    ConvertSpec,
    EvalSpec,
    FileSpec,
    GrpoSpec,
    OpdAgentSpec,
    OpdSpec,
    PassRateSpec,
    PipelineSpec,
    SftSpec,
    TrainSpec,
)
from opd.experiment.load import load_spec, load_text
from opd.experiment.parse import Loaded, parse_tree

__all__ = [
    "FILE_KINDS", "KINDS", "SPEC_CLASSES", "VARIABLES", "AnyRunSpec", "AnySamplingSpec", "AnySpec", "BaseSpec",
    "ConvertSpec", "EvalSpec", "FileSpec", "GrpoSpec", "Kind", "Loaded", "OpdAgentSpec", "OpdSpec", "PassRateSpec",
    "PipelineSpec", "Problem", "SftSpec", "SpecError", "TrainSpec", "canonical_json", "dump_spec", "identity",
    "load_spec", "load_text", "parse_tree", "spec_hash",
]  # fmt: skip
