"""The plan before a start and the plan of the worker are made from the same facts, whichever way they come."""

import dataclasses
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tests.memory.jobs import STUDENT, TEACHER

from opd.config import load_spec
from opd.config.verl import RunFacts, compute_overrides
from opd.memory.sources import job_from_config, job_from_spec
from opd.trainer.entry import compose

EXAMPLE = Path(__file__).parents[1] / "config" / "examples" / "opd.yaml"
RUN = RunFacts(run_id="r", run_dir="/runs/r")


@pytest.mark.parametrize(
    "sets",
    [
        [],
        ["actor.use_dynamic_bsz=true", "opd.cache_gib=2.5", "rollout.tensor_parallel_size=2"],
        [
            "teacher.offload=false",
            "actor.optimizer_offload=true",
            "opd.workspace_gib=2.34",
            "opd.vocab_parallel_size=2",
        ],
        ["actor.gradient_checkpointing=false", "opd.activation_budget=0.35", "rollout.free_cache_engine=false"],
        ["actor.gradient_checkpointing=false", "actor.dtype=fp32", "actor.torch_compile=false"],
        ["actor.ulysses_sequence_parallel_size=2", "actor.use_dynamic_bsz=true"],
    ],
    ids=["defaults", "dynamic", "wishes", "share", "precise", "shared sequences"],
)
def test_the_workers_config_gives_the_job_of_its_spec(sets):
    spec = load_spec(EXAMPLE, sets=sets).spec
    config = compose(compute_overrides(spec, run=RUN))
    OmegaConf.update(config, "actor_rollout_ref.opd", config.opd, force_add=True)
    facts = OmegaConf.to_container(config.actor_rollout_ref, resolve=True)
    num_ranks = spec.trainer.nnodes * spec.trainer.gpus_per_node
    found = job_from_config(facts, STUDENT, TEACHER, num_ranks=num_ranks, on_gpu=True, device_bytes=10**12)
    expected = job_from_spec(spec, STUDENT, TEACHER, device_bytes=10**12)
    assert dataclasses.asdict(found) == dataclasses.asdict(expected)
