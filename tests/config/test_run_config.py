"""What is ours reaches every process typed and unchanged, also where it is named as earlier versions had it in verl's config."""

import pytest
from omegaconf import OmegaConf

from opd.config import SpecError, parse_tree, spec_hash
from opd.config.run_config import KEY, RunConfig
from opd.config.verl import RunFacts, settled

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


def test_a_raw_override_of_a_former_key_counts_and_leaves_the_stored_identity_alone():
    raw = ["run.seed=3", "++run.keep_last=2", "run.agent.call_timeout_s=1", "run.resume=false", "run.id=other"]
    spec = parse_tree(TREES["grpo"] | {"overrides": raw}).spec
    ours = settled(spec, FACTS)
    assert (ours.spec.seed, ours.checkpoint.keep_last, ours.agent.call_timeout_s) == (3, 2, 1.0)
    assert (ours.trainer.resume, ours.run.run_id) == ("never", "other")
    assert spec.overrides == tuple(raw)
    assert spec_hash(spec) != spec_hash(ours.spec)


@pytest.mark.parametrize("raw", ["opd.chunk_sise=3", "~opd.beta", "run.keep_last=many", "opd.valid_vocab=3"])
def test_what_is_no_key_or_value_of_ours_is_refused(raw):
    with pytest.raises(SpecError, match=r"chunk_sise|beta|whole number|valid_vocab"):
        settled(parse_tree(TREES["opd"] | {"overrides": [raw]}).spec, FACTS)


def test_a_key_of_another_kind_has_no_effect():
    spec = parse_tree(TREES["eval"] | {"overrides": ["opd.beta=0.3", "run.keep_last=2"]}).spec
    assert settled(spec, FACTS).spec == spec
