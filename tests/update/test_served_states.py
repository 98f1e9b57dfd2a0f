"""Events of a served teacher in the update: they are the ones of the same teacher's hidden states, token by token."""

import torch
from tensordict import TensorDict

from opd.batch.rows import RolloutRows, loss_positions
from opd.losses import HiddenTargets, Loss, Weights, head_loss
from opd.rollout.rows import IDS, LOG_PROBS
from opd.update.head import HeadLoss
from opd.update.opd_worker import served_events

VOCAB, WIDTH, TOP_K = 13, 4, 5
PROMPTS, RESPONSES = (3, 2), (4, 3)
MASKS = ([1, 1, 0, 1], [1, 1, 1])


def test_a_micro_batch_of_rows_in_another_order_has_the_teachers_own_events():
    torch.manual_seed(0)
    num = sum(PROMPTS) + sum(RESPONSES)
    rows = RolloutRows(
        input_ids=torch.randint(0, VOCAB, (num,)),
        prompt_lens=torch.tensor(PROMPTS),
        response_lens=torch.tensor(RESPONSES),
        response_mask=torch.tensor([bool(one) for mask in MASKS for one in mask]),
    )
    student, teacher = torch.randn(num, WIDTH), torch.randn(num, WIDTH)
    heads = [torch.randn(VOCAB, WIDTH) for _ in range(2)]
    # Of each response token, trained or not, as the rollout brings them: the place before it predicts it.
    places = torch.cat([torch.arange(2, 6), torch.arange(8, 11)])
    best = (teacher[places] @ heads[1].T).log_softmax(-1).topk(TOP_K)
    # The given token, of no use to this divergence, is the first column.
    columns = {IDS: best.indices.int(), LOG_PROBS: best.values}
    columns = {name: torch.cat([values[:, :1], values], 1) for name, values in columns.items()}
    nested = {
        name: torch.nested.as_nested_tensor(list(values.split(RESPONSES)), layout=torch.jagged)
        for name, values in columns.items()
    }
    events = served_events(TensorDict(nested, batch_size=2), rows)

    order = [1, 0]
    starts = torch.tensor([7, 0])  # of the rows in the flattened states
    weights = Weights(divergence=torch.rand(6))
    loss = HeadLoss(rows=rows, loss=Loss("reverse_kl"), weights=weights, events=events)
    task = loss.task(TensorDict({"opd_row": torch.tensor(order)}, batch_size=2), starts, None)
    output = task.output(student[task.positions], heads[0])

    found = loss_positions(rows.select(order), row_starts=starts)
    expected = head_loss(
        student[found.flat_index],
        heads[0],
        found.token_ids,
        task.weights,
        Loss("reverse_kl", {"top_k": TOP_K}),
        targets=HiddenTargets(teacher[found.flat_index], heads[1]),
    )
    torch.testing.assert_close(output.statistics["divergence"], expected.statistics["divergence"])
    torch.testing.assert_close(output.loss, expected.loss)


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
