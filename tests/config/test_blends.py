"""Blends of teachers: which are refused, their shares, and who is told that nothing leads to one."""

import pytest
from tests.config.broken_rules import SEVERAL
from tests.config.trees import problems_of, tree_of

from opd.config import parse_tree

BLENDED = SEVERAL | {"route.to": {"x": "both"}, "route.blends": {"both": {"weights": {"a": 3, "b": 1}}}}


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        (
            {"route.blends": {"both": {"weights": {"a": 1, "c": 1}}}},
            "route.blends.both.weights.c",
            "no teacher of that",
        ),
        (
            {"teachers": {"a": {"path": "t", "prompt": "{prompt}!"}, "b": {"path": "u"}}},
            "route.blends.both.weights.a",
            "prompt of its own",
        ),
        (
            {"route.blends": {"both": {"weights": {"a": 1e10, "b": 1e-320}}}},
            "route.blends.both.weights.b",
            "would say nothing",
        ),
    ],
)
def test_what_a_blend_cannot_read_is_refused(changes, path, words, minimal):
    (problem,) = problems_of(tree_of(minimal, "opd", **(BLENDED | changes)))
    assert problem.path == path
    assert words in problem.rule


@pytest.mark.parametrize(
    ("blend", "words"),
    [
        ({"weights": {"a": 1, "b": 0}}, "greater than 0"),
        ({"weights": {"a": 1, "b": -2.5}}, "greater than 0"),
        ({"weights": {}}, "at least 1 item"),
        ({"weights": {"a": 1}, "form": "product"}, "'mixture' or 'sum'"),
    ],
)
def test_a_blend_that_is_none_is_refused(blend, words, minimal):
    (problem,) = problems_of(tree_of(minimal, "opd", **(BLENDED | {"route.blends": {"both": blend}})))
    assert problem.path.startswith("route.blends.both")
    assert words in problem.rule


def test_the_largest_weights_that_there_are_have_shares(minimal):
    blend = {"both": {"weights": {"a": 1e308, "b": 1e308}}}
    (reader,) = parse_tree(tree_of(minimal, "opd", **(BLENDED | {"route.blends": blend}))).spec.routed
    assert reader.shares == (0.5, 0.5)


def test_a_blends_shares_are_its_weights_over_their_sum_and_no_teacher_of_it_is_idle(minimal):
    parsed = parse_tree(tree_of(minimal, "opd", **BLENDED))
    assert not any("idle" in note or "reads nothing" in note for note in parsed.notes)
    assert parsed.spec.readers == (
        ("a", (0,), (1.0,), "mixture"),
        ("b", (1,), (1.0,), "mixture"),
        ("both", (0, 1), (0.75, 0.25), "mixture"),
    )
    assert [reader.name for reader in parsed.spec.routed] == ["both"]
    ten = BLENDED | {"route.blends": {"both": {"form": "sum", "weights": {"b": 10, "a": 30}}}}
    assert parse_tree(tree_of(minimal, "opd", **ten)).spec.routed[0].shares == (0.75, 0.25)


def test_a_blend_that_nothing_leads_to_is_remarked_and_one_on_a_gpu_has_no_kernels(minimal):
    (note,) = parse_tree(tree_of(minimal, "opd", **(BLENDED | {"route.to": SEVERAL["route.to"]}))).notes
    assert note.startswith("route.blends.both: nothing leads to it")
    (note,) = parse_tree(tree_of(minimal, "opd", **(BLENDED | {"device": "cuda"}))).notes
    assert "rows of both run through plain fp32 products" in note
