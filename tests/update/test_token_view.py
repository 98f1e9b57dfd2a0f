"""Views of rows that several ranks share."""

import math

import numpy as np

from opd.update.token_view import RowView, Seen, seen_by_all


def test_two_ranks_parts_of_a_row_become_one():
    def seen(entropy: list[float]) -> Seen:
        values = np.array(entropy, np.float32)
        values.setflags(write=False)  # as Ray brings it from another process
        top = np.broadcast_to(values[:, None, None], (2, 3, 2))
        of_rank = {"entropy": values, "divergence": values, "top_student": top, "top_teacher": top}
        return {7: RowView(trained=np.ones(2, bool), kept=np.ones(2, bool), **of_rank)}

    whole = seen_by_all([seen([1, math.nan]), seen([math.nan, 2])])
    assert whole[7].entropy.tolist() == whole[7].divergence.tolist() == whole[7].top_student[:, 2, 1].tolist() == [1, 2]
