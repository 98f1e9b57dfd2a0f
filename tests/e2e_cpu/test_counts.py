"""Counts of a step, against a hand count: two ranks, two mini-batches, answers known in advance."""

import pyarrow as pa
import pyarrow.parquet as pq
from tests.e2e_cpu.runs import ROOT, finish, start
from tests.scripted import override as scripted_by

from opd.data.rows import SCHEMA
from opd.data.toy import STUDENT_DIR
from opd.data.toy.task import Problem, make_row

_ANSWER = "046"
_NUM_RIGHT, _NUM_WRONG, _NUM_OVERLONG = 5, 11, 3


def _train_file(path) -> str:
    """16 prompts of which five have the answer that will be given, and three that are too long to ask."""
    right = [make_row(Problem(10 + i, 36 - i), "train") for i in range(_NUM_RIGHT)]
    wrong = [make_row(Problem(50 + i, 40), "train") for i in range(_NUM_WRONG)]
    overlong = [make_row(Problem(70 + i, 20), "train") for i in range(_NUM_OVERLONG)]
    for row in overlong:
        row["prompt"][0]["content"] *= 8
    pq.write_table(pa.Table.from_pylist(right + wrong + overlong, schema=SCHEMA), path)
    return str(path)


def test_counts_over_two_ranks_and_two_mini_batches_equal_the_hand_count(tmp_path, monkeypatch):
    # The original reports a rank mean of tokens, counts padding as tool tokens and makes one update (10, 14).
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the script's class
    settings = (
        f"data.train=[{_train_file(tmp_path / 'train.parquet')}]", "trainer.gpus_per_node=2",
        "actor.ppo_mini_batch_size=8", "trainer.total_steps=1", "trainer.val_before_train=false",
    )  # fmt: skip
    process = start(tmp_path, "opd", *settings, raw=[scripted_by(tmp_path, {"": [_ANSWER]}, STUDENT_DIR)])
    row = finish(process, tmp_path, "opd").must_be_clean().steps[0]
    num_rows = _NUM_RIGHT + _NUM_WRONG
    assert row["opd/n_correct"] == _NUM_RIGHT
    assert row["opd/accuracy"] == _NUM_RIGHT / num_rows
    assert row["opd/valid_rows"] == row["opd/batch_size"] == num_rows
    assert row["opd/num_tokens"] == num_rows * (len(_ANSWER) + 1), "three digits and the end token"
    assert row["opd/tool_mask/llm_tokens"] == row["opd/num_tokens"]
    assert row["data/num_overlong_dropped"] == _NUM_OVERLONG
    assert row["opd/num_updates"] == 2
    assert row["opd/skipped_step"] == row["rollout/failed"] == row["reward/failed"] == 0
