"""`python -m opd.main_opd` with what people who know verl type: no key of ours is needed, and one place holds the defaults."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from opd.experiment import SpecError
from opd.experiment.raw import parse_raw
from opd.experiment.verl import compute_overrides
from opd.launch import facts
from opd.main_opd import spec_of
from opd.trainer.entry import CONFIG_NAME, config_dir

MODELS = ["actor_rollout_ref.model.path=/models/student", "+actor_rollout_ref.ref.model.path=/models/teacher"]


def test_the_yaml_says_no_default_that_a_spec_has():
    yaml = OmegaConf.load(Path(config_dir()) / f"{CONFIG_NAME}.yaml")
    spec = spec_of(MODELS, {})
    typed = {parse_raw(line)["key"] for line in compute_overrides(spec, run=facts(spec))}
    assert {path for path in typed if OmegaConf.select(yaml, path) is not None} == set()


@pytest.mark.parametrize(
    ("given", "name", "folder"),
    [
        (["trainer.experiment_name=opd_thinking", "trainer.default_local_dir=/out/a"], "opd-thinking", "/out/a"),
        (["trainer.experiment_name='7 B'"], "run-7-b", "outputs"),
    ],
)
def test_a_run_has_its_directory_by_verls_name_below_verls_folder(given, name, folder):
    spec = spec_of([*MODELS, *given], {})
    assert (spec.name, spec.output.root, spec.store.url) == (name, folder, folder)
    assert facts(spec).run_dir == f"{folder}/{name}"


def test_the_teacher_may_come_from_the_environment_and_is_overridden_by_the_command_line():
    assert spec_of(MODELS[:1], {"TEACHER_MODEL_PATH": "/env"}).teacher.path == "/env"
    assert spec_of(MODELS, {"TEACHER_MODEL_PATH": "/env"}).teacher.path == "/models/teacher"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (MODELS[:1], ["opd.teacher.path\n", "TEACHER_MODEL_PATH"]),
        ([*MODELS, "data.train_batch_size=10"], ["actor_rollout_ref.actor.ppo_mini_batch_size\n", "must divide"]),
        ([*MODELS, "actor_rollout_ref.rollout.name=sglang"], ["actor_rollout_ref.rollout.name", '"sglang"', "'vllm'"]),
        ([*MODELS, "actor_rollout_ref.actor.strategy=megatron"], ["only the fsdp2 engine is supported"]),
        ([*MODELS, "run.kind=ppo"], ["ppo"]),
    ],
    ids=["no teacher", "batches", "rollout server", "engine", "kind"],
)
def test_what_cannot_work_is_refused_in_verls_own_keys(given, words):
    with pytest.raises(SpecError) as error:
        spec_of(given, {})
    for word in words:
        assert word in str(error.value)
