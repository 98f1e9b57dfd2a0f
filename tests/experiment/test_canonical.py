"""The canonical form round-trips exactly; the hash covers identity and nothing else."""

import json

import pytest

from opd.experiment import SPEC_CLASSES, dump_spec, identity, parse_tree, spec_hash
from opd.experiment.kinds import NOT_IDENTITY, canonical_json
from opd.experiment.tree import field_at, set_path


@pytest.mark.parametrize("kind", sorted(SPEC_CLASSES))
def test_a_spec_with_its_defaults_written_out_is_the_same_spec(kind, minimal):
    spec = parse_tree(minimal(kind)).spec
    assert parse_tree(dict(reversed(dump_spec(spec).items()))).spec == spec


@pytest.mark.parametrize(
    ("path", "value", "is_another"),
    [
        ("seed", 7, True),
        ("actor.learning_rate", 2e-6, True),
        ("opd.loss_type", "forward_kl", True),
        ("opd.importance.problems", {"weights": "competence", "pass_rates": "p.parquet"}, True),
        ("opd.stages", [{"loss_type": "forward_kl"}], True),
        ("trainer.gpus_per_node", 4, True),
        ("overrides", ["algorithm.gamma=0.5"], True),
        ("name", "other", False),
        ("env", {"NCCL_DEBUG": "INFO"}, False),
        ("trainer.total_steps", 99, False),
        ("actor.ppo_micro_batch_size_per_gpu", 2, False),
    ],
)
def test_the_hash_changes_with_the_experiment_and_with_nothing_else(path, value, is_another, minimal):
    tree = minimal("opd")
    before = spec_hash(parse_tree(tree).spec)
    set_path(tree, path, value)
    assert (spec_hash(parse_tree(tree).spec) != before) is is_another


@pytest.mark.parametrize("key", ["teacher", "teachers.a"])
def test_a_served_teacher_may_move_and_gain_replicas_but_the_ranks_do_not_take_its_place(minimal, key):
    tree, hashes = minimal("opd"), []
    if key != "teacher":
        tree |= {"teacher": None, "teachers": {"a": {"path": "t"}, "b": {"path": "u"}}, "route": {"to": {"x": "a"}}}
    for url in ([], ["http://a:8000/v1"], ["http://b:8000/v1", "http://c:8000/v1"]):
        set_path(tree, f"{key}.url", url)
        set_path(tree, f"{key}.wait_s", 60.0 + len(url))
        hashes.append(spec_hash(parse_tree(tree).spec))
    assert hashes[0] != hashes[1] == hashes[2]
    if key == "teacher":
        served = parse_tree({**tree, "teacher": {"path": "t", "serve": {"gpus": 2}}}).spec
        assert (spec_hash(served), parse_tree(dump_spec(served)).spec) == (hashes[1], served)


def test_what_is_no_identity_are_real_keys_and_identity_is_plain_json_without_them(minimal):
    for path in NOT_IDENTITY:
        assert any(field_at(cls, path) is not None for cls in SPEC_CLASSES.values()), path
    found = identity(parse_tree(minimal("opd")).spec)
    assert json.loads(canonical_json(found)) == found
    assert not {"name", "store", "output", "checkpoint", "env"} & set(found)
