"""Supervised fine-tuning on the toy task: the loss is what transformers says, and a killed run ends in the same weights."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.e2e_cpu.runs import Outcome, kill_and_resume, must_end_alike, run
from transformers import AutoModelForCausalLM, AutoTokenizer

from opd.data.answered import answered_rows
from opd.data.toy import STUDENT_DIR

_STEPS = 8  # as in specs/sft.yaml, like the seed and the 60 rows that are validated on
_SET = f"trainer.test_freq={_STEPS}"


def _loss_of_the_start(outcome: Outcome) -> float:
    """Mean cross-entropy of the held-out rows that the run draws, of the model that it begins with."""
    tokenizer, model = (kind.from_pretrained(STUDENT_DIR) for kind in (AutoTokenizer, AutoModelForCausalLM))
    held_out = pq.read_table(outcome.run_dir / "data" / "heldout.parquet")["messages"].to_pylist()
    drawn = np.random.default_rng(3).choice(len(held_out), size=60, replace=False)
    losses: list[float] = []
    for number in drawn:
        [row] = answered_rows(tokenizer, held_out[number])
        assert sum(row.mask) == 4, "three digits and the end of the turn"
        with torch.no_grad():
            logits = model.double()(torch.tensor([row.prompt + row.response])).logits[0, len(row.prompt) - 1 : -1]
        losses += (-logits.log_softmax(-1).gather(1, torch.tensor([row.response]).T)).flatten().tolist()
    return sum(losses) / len(losses)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Outcome:
    return run(tmp_path_factory.mktemp("whole"), "sft", _SET).must_be_clean()


def _validations(outcome: Outcome) -> list[float]:
    return [row["val-aux/loss"] for row in outcome.rows if "val-aux/loss" in row]


def test_it_learns_the_answers(whole):
    losses = _validations(whole)
    assert losses[0] == pytest.approx(_loss_of_the_start(whole), rel=1e-5)
    assert losses[-1] < losses[0]
    assert (whole.result["validation_before"], whole.result["validation_after"]) == (
        {"loss": losses[0]},
        {"loss": losses[-1]},
    )
    assert [row["actor/num_tokens"] for row in whole.steps] == [16 * 4] * _STEPS
    assert [row["actor/num_updates"] for row in whole.steps] == [2] * _STEPS
    assert "rollout" not in whole.output


def test_killed_and_resumed_it_ends_as_the_uninterrupted_run(tmp_path, whole):
    resumed = kill_and_resume(tmp_path, "sft", _SET, behind=1)
    for mine, theirs in zip(resumed.steps, whole.steps, strict=True):
        for name in ("training/global_step", "training/epoch", "actor/loss", "actor/grad_norm", "actor/lr"):
            assert mine[name] == theirs[name], name
    assert resumed.steps[-1]["val-aux/loss"] == _validations(whole)[-1]
    must_end_alike(resumed, whole, _STEPS)
