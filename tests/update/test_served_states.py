"""Events of a served teacher in the update (`test_teachers` compares their loss)."""

import torch
from tensordict import TensorDict

from opd.batch.rows import RolloutRows
from opd.losses import Loss
from opd.rollout.rows import IDS, LOG_PROBS
from opd.update.head import HeadLoss
from opd.update.opd_worker import served_events


def test_tokens_that_a_choice_drops_leave_their_events():
    rows = RolloutRows(
        input_ids=torch.arange(5), prompt_lens=torch.tensor([2]), response_lens=torch.tensor([3]),
        response_mask=torch.tensor([True, True, True]),
    )  # fmt: skip
    ids = torch.arange(6, dtype=torch.int32).view(3, 2)
    data = {IDS: [ids], LOG_PROBS: [-torch.ones(3, 2)]}
    nested = {name: torch.nested.as_nested_tensor(values, layout=torch.jagged) for name, values in data.items()}
    loss = HeadLoss(rows=rows, loss=Loss(), events=served_events(TensorDict(nested, batch_size=1), rows))
    assert loss.keeping(torch.tensor([True, False, True])).events.ids.tolist() == [[0, 1], [4, 5]]
