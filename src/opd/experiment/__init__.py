"""The experiment spec: one strict, torch-free schema that trainer, charts and tool share.

loaded = load_spec("exp.yaml", env=os.environ, sets=["seed=7"])
loaded.spec.data.train_batch_size
"""

from opd.experiment.base import FILE_KINDS
from opd.experiment.errors import Problem, SpecError
from opd.experiment.kinds import (
    SPEC_CLASSES,
    AnyRunSpec,
    AnySpec,
    BaseSpec,
    ConvertSpec,
    EvalSpec,
    FileSpec,
    GrpoSpec,
    OpdAgentSpec,
    OpdSpec,
    PipelineSpec,
    SftSpec,
    TrainSpec,
    dump_spec,
    identity,
    spec_hash,
)
from opd.experiment.load import load_spec, load_text
from opd.experiment.parse import Loaded, parse_tree
from opd.experiment.raw import VARIABLES

__all__ = [
    "FILE_KINDS", "SPEC_CLASSES", "VARIABLES", "AnyRunSpec", "AnySpec", "BaseSpec", "ConvertSpec", "EvalSpec",
    "FileSpec", "GrpoSpec", "Loaded", "OpdAgentSpec", "OpdSpec", "PipelineSpec", "Problem", "SftSpec", "SpecError",
    "TrainSpec", "dump_spec", "identity", "load_spec", "load_text", "parse_tree", "spec_hash",
]  # fmt: skip
