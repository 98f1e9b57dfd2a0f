"""Values by themselves: types, ranges, and names that KubeRay takes."""

import pytest
from tests.experiment.trees import problems_of, tree_of

from opd.experiment import parse_tree


def test_the_longest_name_that_kuberay_takes_is_accepted(minimal):
    assert parse_tree({**minimal("opd"), "name": "a" * 47}).spec.name == "a" * 47


@pytest.mark.parametrize("value", ["", "A", "1a", "a-", "-a", "a_b", "ä", "a\n", "a" * 48])
def test_a_name_that_kuberay_refuses_is_refused(value, minimal):
    (problem,) = problems_of({**minimal("opd"), "name": value})
    assert problem.path == "name"
    assert "DNS-1035" in problem.rule


@pytest.mark.parametrize(
    ("path", "value"),
    [("rollout.top_k", 0), ("rollout.top_k", -2), ("rollout.top_p", 0), ("rollout.temperature", 0),
     ("actor.betas", [0.9, 1.0]), ("actor.betas", [0.9]), ("seed", 2**31), ("trainer.loggers", []), ("data.train", [None]),
     ("data.train_batch_size", True), ("data.train_batch_size", "8"), ("data.train_batch_size", 8.5),
     ("data.enable_thinking", 1), ("model.path", 5), ("model.path", ""), ("env", {"A": 1}), ("env", {"A B": "x"}),
     ("rollout.engine_kwargs", {"a=b": 1}), ("rollout.engine_kwargs", {"a": [{"b": 1}]}),
     ("model.lora", {"rank": 4, "target_modules": ["lm_head"]}),
     ("model.lora", {"rank": 4, "target_modules": ["model.embed_tokens"]})],
)  # fmt: skip
def test_a_value_of_the_wrong_type_or_range_is_refused(path, value, minimal):
    (problem,) = problems_of(tree_of(minimal, "opd", **{path: value}))
    assert problem.path.startswith(path)


def test_a_whole_number_may_be_written_as_a_float(minimal):
    # Helm's JSON has 8 where the file has 8.0: both must be the same spec.
    assert parse_tree(tree_of(minimal, "opd", **{"rollout.num_samples": 8.0})).spec.rollout.num_samples == 8


def test_null_unsets_a_key_of_any_depth(minimal):
    tree = {**minimal("opd"), "store": {"endpoint": None, "region": None}, "data": None, "opd": {"beta": None}}
    assert parse_tree(tree).spec == parse_tree(minimal("opd")).spec
