"""The density of a step's tokens against bins worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import torch

from opd.update.token_view import EDGES, NUM_BINS, RowView, Seen, density


def test_tokens_are_counted_by_the_bins_of_entropy_and_divergence():
    # Six bins a decade from 1e-6: 2e-6 is 0.30 of a decade above the first edge, so in its second bin, which is number 2.
    # 0.5 is 5.70 decades above, 34 whole bins: number 35. Below 1e-6 is bin 0, from 10 on the last one.
    entropy = torch.tensor([2e-6, 2e-6, 0.5, 11.9, math.nan, 0.5])
    divergence = torch.tensor([0.5, 0.5, -1e-8, 0.0, 0.5, math.inf])
    kept = torch.tensor([True, False, True, False, True, True])
    found = density(entropy=entropy, divergence=divergence, kept=kept)
    cells = {tuple(place): found[tuple(place)].tolist() for place in np.argwhere(found[..., 0]).tolist()}
    assert cells == {(2, 35): [2, 1], (35, 0): [1, 1], (NUM_BINS - 1, 0): [1, 0]}
    assert found.sum() == 6


def test_an_edge_belongs_to_the_bin_above_it():
    edges = torch.tensor(EDGES)
    found = density(entropy=edges, divergence=edges, kept=torch.ones(len(edges), dtype=torch.bool))
    assert np.argwhere(found[..., 0]).tolist() == [[k, k] for k in range(1, NUM_BINS)]


def test_two_ranks_parts_of_a_row_become_one():
    def seen(entropy: list[float]) -> Seen:
        values = np.array(entropy, np.float32)
        values.setflags(write=False)  # as Ray brings it from another process
        view = RowView(trained=np.ones(2, bool), kept=np.ones(2, bool), entropy=values, divergence=values)
        return Seen(rows={7: view}, covers_all=entropy[0] == 1)

    whole = Seen.of_ranks([seen([1, math.nan]), seen([math.nan, 2])])
    assert whole.rows[7].entropy.tolist() == whole.rows[7].divergence.tolist() == [1, 2]
    assert not whole.covers_all
