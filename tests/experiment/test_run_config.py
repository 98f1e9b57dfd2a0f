"""Spec and facts reach every process typed and unchanged."""

import pytest
from omegaconf import OmegaConf

from opd.experiment import parse_tree
from opd.experiment.run_config import KEY, RunConfig, RunFacts

TREES = {
    "grpo": {"kind": "grpo", "model": {"path": "m"}, "agent": {"database_dir": "d"}},
    "opd": {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}, "env": {"A": "${b} \\${c} $"}},
    "eval": {"kind": "eval", "model": {"path": "m"}, "rollout": {"engine_kwargs": {"a": 1e16, "b": [1, "x"]}}},
}
FACTS = RunFacts(run_id="r", run_dir="runs/${r}", valid_vocab=7)


@pytest.mark.parametrize("kind", TREES)
def test_spec_and_facts_come_out_of_verls_config_as_they_went_in(kind):
    ours = RunConfig(spec=parse_tree(TREES[kind]).spec, run=FACTS)
    config = OmegaConf.create({KEY: ours.text()})
    OmegaConf.resolve(config)
    assert RunConfig.of(OmegaConf.create(OmegaConf.to_container(config, resolve=True))) == ours
