"""The spec's keys, the trainer's config and the functions of `opd.importance` say the same."""

from __future__ import annotations

import dataclasses
from typing import get_args, get_type_hints

import pytest

from opd.importance import TokenSelection
from opd.spec.algorithm import TokenImportance


def test_a_share_of_the_batch_cannot_be_chosen_within_micro_batches():
    with pytest.raises(ValueError, match="how it is cut"):
        TokenSelection(score="entropy", normalize="micro", scope="batch")
    assert not TokenSelection(score="position", normalize="micro", scope="batch").in_head  # it reads no micro-batch


def test_a_selection_has_the_specs_keys_values_and_defaults():
    hints = get_type_hints(TokenSelection)
    assert TokenImportance().model_dump() == dataclasses.asdict(TokenSelection())
    for name, field in TokenImportance.model_fields.items():
        if isinstance(field.default, str):
            assert get_args(hints[name]) == get_args(field.annotation), name
