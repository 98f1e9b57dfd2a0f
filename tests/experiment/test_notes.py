"""Remarks on what a spec may say but probably does not mean."""

import pytest
from tests.experiment.trees import tree_of

from opd.experiment import parse_tree

MICRO = {"actor.ppo_micro_batch_size_per_gpu": 2}


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("opd", {}, ""),
        ("opd", MICRO, ""),
        ("opd", MICRO | {"actor.use_dynamic_bsz": True}, "cuts by tokens"),
        ("opd", MICRO | {"opd.train_tokens": 4096}, "opd.train_tokens"),
        (
            "opd",
            {"actor.ppo_max_token_len_per_gpu": 30000, "actor.use_dynamic_bsz": False},
            "without actor.use_dynamic_bsz",
        ),
    ],
)
def test_what_is_probably_not_meant_is_remarked_and_nothing_else(kind, changes, words, minimal):
    notes = parse_tree(tree_of(minimal, kind, **changes)).notes
    assert [words in note for note in notes] == ([True] if words else [])
