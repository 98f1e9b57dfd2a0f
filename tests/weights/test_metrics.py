"""The metrics of a selection against a case counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from opd.weights import selection_metrics


def test_shares_quadrants_and_quantiles_of_six_tokens():
    # Medians 2.5 and 0.5: tokens 3, 4, 5 have high entropy, tokens 0, 3, 5 a high divergence.
    metrics = selection_metrics(
        tensor([True, False, False, True, False, False]),
        tensor([0, 0, 0, 0, 0, 8]),
        entropy=tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        divergence=tensor([2.0, 0.0, 0.5, 4.0, 0.5, 1.0]),
    )
    expected = {
        "selected": 2 / 6,
        "rollouts_without": 1.0,
        "entropy_p50": 2.5,
        "entropy_p90": 4.5,
        "entropy_p98": 4.9,
        "divergence_p50": 0.75,
        "divergence_p90": 3.0,
        "divergence_p98": 3.8,
        "divergence_covered": 6 / 8,
        "q1": 2 / 6,
        "q1_selected": 1 / 2,
        "q2": 1 / 6,
        "q2_selected": 0.0,
        "q3": 1 / 6,
        "q3_selected": 1 / 2,
        "q4": 2 / 6,
        "q4_selected": 0.0,
    }
    assert metrics == pytest.approx(expected)


def test_what_was_not_scored_is_not_reported():
    assert set(selection_metrics(tensor([True, False]), tensor([0, 0]))) == {"selected", "rollouts_without"}


def test_a_batch_without_tokens_has_no_metrics():
    assert selection_metrics(torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.int64)) == {}
