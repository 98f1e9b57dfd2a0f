"""Rows of a step travel in one dispatch: in the order of the data, filled up, and as even as they can be shared out."""

import torch
from verl.protocol import BatchData
from verl.utils import tensordict_utils as tu

from opd.rollout.rows import FILLER_TOKENS, IDS, LOG_PROBS, Order, Row, columns_of, row_of, share_out

EOS = 9
SETTINGS = {"mini_batch_size": 4, "epochs": 1, "dataloader_kwargs": {"shuffle": False}, "shown_rows": (1, 2)}


def _row(index: int, num_tokens: int, **columns: float) -> Row:
    row = row_of(Order(index), f"1/{index}", [1, 2], [3] * num_tokens, [1] * num_tokens)
    row.columns |= {"rm_scores": torch.zeros(num_tokens)}
    row.columns |= {name: torch.tensor(value) for name, value in columns.items()}
    return row


def _shared(rows: list[Row], *, num_ranks: int, multiple_of: int):
    return share_out(rows, num_ranks=num_ranks, multiple_of=multiple_of, eos_token_id=EOS, settings=SETTINGS)


def test_whole_updates_keep_the_order_of_the_data_whoever_answered_first():
    batch, _ = _shared([_row(3, 1), _row(0, 4), _row(2, 2), _row(1, 3)], num_ranks=1, multiple_of=4)
    assert [len(ids) for ids in batch["responses"].unbind()] == [4, 3, 2, 1]
    assert tu.get_non_tensor_data(batch, "shown_rows", None) == (1, 2)


def test_uneven_rows_are_filled_up_by_rows_of_weight_0_that_train_nothing():
    rows = [_row(index, 5, sample_weights=2.0, row_id=index) for index in range(5)]
    batch, metrics = _shared(rows, num_ranks=2, multiple_of=4)
    parts = BatchData(batch).chunk(chunks=2)
    assert [len(part) for part in parts] == [4, 4]
    fillers = batch["row_id"] == -1
    assert (int(fillers.sum()), batch["sample_weights"][fillers].tolist()) == (3, [0.0] * 3)
    of_fillers = [i for i, is_filler in enumerate(fillers.tolist()) if is_filler]
    for place in of_fillers:
        assert batch["input_ids"].unbind()[place].tolist() == [EOS] * FILLER_TOKENS
        assert batch["response_mask"].unbind()[place].tolist() == [0]
    assert metrics["global_seqlen/balanced_max"] - metrics["global_seqlen/balanced_min"] <= 7


def test_ranks_get_rows_that_cost_about_the_same():
    lengths = [40, 1, 1, 1, 38, 1, 1, 1]
    batch, _ = _shared([_row(index, num) for index, num in enumerate(lengths)], num_ranks=2, multiple_of=4)
    sums = [int(part["input_ids"].offsets()[-1]) for part in BatchData(batch).chunk(chunks=2)]
    assert max(sums) - min(sums) <= 4


def test_vectors_stay_nested_where_all_rows_are_as_long_and_columns_that_a_row_lacks_stay_behind():
    rows = [_row(0, 3), _row(1, 3, advantage=1.0)]
    rows[0].columns["rollout_log_probs"] = torch.zeros(3)
    batch = columns_of(rows)
    assert batch["responses"].is_nested
    assert not {"rollout_log_probs", "advantage"} & set(batch.keys())


def test_a_filler_has_the_events_of_a_served_teacher_too():
    rows = [_row(index, 3) for index in range(2)]
    for row in rows:
        row.columns |= {IDS: torch.ones(3, 5, dtype=torch.int32), LOG_PROBS: torch.ones(3, 5)}
    batch, _ = _shared(rows, num_ranks=1, multiple_of=3)
    assert sorted(events.shape for events in batch[IDS].unbind()) == [(1, 5), (3, 5), (3, 5)]
    assert batch[IDS].dtype == torch.int32
