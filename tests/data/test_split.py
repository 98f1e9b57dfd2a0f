"""Seeded parts of a data set: each row's part follows from what it asks, the number of parts and the seed."""

from collections import Counter

import pytest

from opd.data.messages import part_of
from opd.data.toy.task import all_problems

PROMPTS = [problem.messages for problem in all_problems()]


@pytest.mark.parametrize("of", [2, 3])
def test_parts_are_about_equally_large(of):
    counts = Counter(part_of(messages, of=of, seed=1) for messages in PROMPTS)
    assert sorted(counts) == list(range(1, of + 1))
    expected = len(PROMPTS) / of
    deviation = (expected * (1 - 1 / of)) ** 0.5  # of a binomial count
    assert all(abs(count - expected) < 4 * deviation for count in counts.values())


def test_the_parts_of_a_seed_are_those_of_earlier_versions():
    # A run that resumes, or a later stage of a pipeline, must find the same halves.
    assert [part_of([{"role": "user", "content": f"{n}"}], of=2, seed=42) for n in range(10)] == [
        1,
        1,
        2,
        1,
        2,
        2,
        2,
        1,
        2,
        1,
    ]


def test_a_prompt_is_where_the_conversations_are_that_answer_it():
    asked = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1="}]
    said = [
        {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "2"},
    ]
    for seed in range(20):
        assert part_of(asked, of=5, seed=seed) == part_of(asked + said, of=5, seed=seed)
