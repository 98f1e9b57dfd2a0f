"""The canonical form round-trips exactly; the hash covers identity and nothing else."""

import json
from pathlib import Path

import pytest

from opd.config import (
    SPEC_CLASSES,
    canonical_json,
    dump_spec,
    identity,
    load_spec,
    load_text,
    parse_tree,
    spec_hash,
)
from opd.config.canonical import NOT_IDENTITY
from opd.config.tree import field_at, set_path

EXAMPLES = sorted((Path(__file__).parent / "examples").glob("*.yaml"))
KINDS = sorted(SPEC_CLASSES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_round_trips_exactly_through_its_canonical_form(path):
    spec = load_spec(path).spec
    text = canonical_json(dump_spec(spec))
    again = load_text(text, is_json=True).spec
    assert again == spec
    assert canonical_json(dump_spec(again)) == text
    assert spec_hash(again) == spec_hash(spec)


@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_with_its_defaults_written_out_is_the_same_spec(kind, minimal):
    spec = parse_tree(minimal(kind)).spec
    assert parse_tree(dump_spec(spec)).spec == spec


def test_yaml_and_helms_json_of_one_spec_have_one_hash(minimal):
    text = "kind: opd\nmodel: {path: m}\nteacher: {path: t}\nactor: {weight_decay: 1.0, learning_rate: 1e-6}\n"
    as_json = (
        '{"actor":{"learning_rate":0.000001,"weight_decay":1},"kind":"opd","model":{"path":"m"},"teacher":{"path":"t"}}'
    )
    assert spec_hash(load_text(text).spec) == spec_hash(load_text(as_json, is_json=True).spec)


def test_the_hash_does_not_depend_on_the_order_of_keys(minimal):
    tree = minimal("opd")
    assert spec_hash(parse_tree(tree).spec) == spec_hash(parse_tree(dict(reversed(tree.items()))).spec)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", 7),
        ("model.path", "other"),
        ("teacher.path", "other"),
        ("teacher.dtype", "fp32"),
        ("data.dir", "other"),
        ("data.train_batch_size", 512),
        ("data.enable_thinking", False),
        ("rollout.num_samples", 4),
        ("rollout.temperature", 0.9),
        ("rollout.val.temperature", 0.1),
        ("actor.learning_rate", 2e-6),
        ("actor.ppo_mini_batch_size", 128),
        ("opd.loss_type", "forward_kl"),
        ("opd.importance.tokens.score", "soft_or"),
        ("opd.importance.tokens.divergence_clip_q", 0.99),
        ("opd.importance.problems", {"weights": "competence", "pass_rates": "p.parquet"}),
        ("opd.loss_agg_mode", "seq-mean-token-sum"),
        ("opd.stages", [{"loss_type": "forward_kl"}]),
        ("opd.horizon.tokens", 512),
        ("reward.function", "math_verify"),
        ("trainer.gpus_per_node", 4),
        ("overrides", ["algorithm.gamma=0.5"]),
    ],
)
def test_what_changes_the_experiment_changes_the_hash(path, value, minimal):
    tree = minimal("opd")
    before = spec_hash(parse_tree(tree).spec)
    set_path(tree, path, value)
    assert spec_hash(parse_tree(tree).spec) != before


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "other"),
        ("env", {"NCCL_DEBUG": "INFO"}),
        ("store.url", "s3://b"),
        ("output.root", "elsewhere"),
        ("checkpoint.keep_last", 2),
        ("trainer.total_epochs", 99),
        ("trainer.total_steps", 99),
        ("trainer.save_freq", 1),
        ("trainer.loggers", ["file"]),
        ("trainer.resume", "never"),
        ("actor.param_offload", False),
        ("actor.ppo_micro_batch_size_per_gpu", 2),
        ("rollout.gpu_memory_utilization", 0.4),
        ("cluster", {"image": "x"}),
    ],
)
def test_what_does_not_change_the_experiment_keeps_the_hash(path, value, minimal):
    tree = minimal("opd")
    before = spec_hash(parse_tree(tree).spec)
    set_path(tree, path, value)
    assert spec_hash(parse_tree(tree).spec) == before


def test_the_lists_of_what_is_no_identity_name_real_keys():
    for path in NOT_IDENTITY:
        assert any(field_at(cls, path) is not None for cls in SPEC_CLASSES.values()), path


def test_identity_is_plain_json_without_the_runs_places(minimal):
    found = identity(parse_tree(minimal("opd")).spec)
    assert json.loads(canonical_json(found)) == found
    assert not {"name", "store", "output", "checkpoint", "env"} & set(found)
