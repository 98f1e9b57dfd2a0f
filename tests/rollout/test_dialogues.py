"""Which conversations a run keeps, and that a store that is away loses none."""

from __future__ import annotations

import random
from types import SimpleNamespace

from tests.agent.talk import END, TOKENIZER, call, talk

from opd.agent.trajectories import file_key, from_lines
from opd.rollout.dialogues import DialogueKeeper, DialogueLog, segments
from opd.rollout.seeds import TRAIN, VALIDATION
from opd.store.local import LocalStore

DIALOGUE = talk([call() + END, "42" + END]).dialogue


def keep(places, num_kept: int = 3, partition: str = TRAIN, step: int = 4) -> DialogueKeeper:
    keeper = DialogueKeeper(num_kept, TOKENIZER, partition)
    for index, sample in places:
        row = {
            "index": index, "global_steps": step, "data_source": "travel_zh", "reward_model": {"ground_truth": "42"},
        }  # fmt: skip
        info = {"question_answer_right": 1.0, "pred": "42", "score": 1.0, "shape": [1]}
        output = SimpleNamespace(reward_score=1.0, extra_fields={"reward_extra_info": info})
        keeper.see(DIALOGUE, output, row, sample)
    return keeper


def test_the_first_of_the_data_are_kept_whatever_finished_first():
    places = [(index, sample) for index in range(5) for sample in range(2)]
    for seed in range(3):
        shuffled = random.Random(seed).sample(places, len(places))
        keeper = keep(shuffled)
        assert [(item.data_index, item.sample) for item in keeper.kept()] == [(0, 0), (0, 1), (1, 0)]
        assert keeper.counts.num_dialogues == 10


def test_a_run_that_keeps_none_still_counts():
    keeper = keep([(0, 0)], num_kept=0)
    assert keeper.kept() == []
    assert keeper.counts.num_dialogues == 1


def test_segments_are_the_response_cut_where_the_mask_changes():
    found = list(segments(DIALOGUE, TOKENIZER))
    assert [part.trained for part in found] == [True, False, True]
    assert sum(part.num_tokens for part in found) == len(DIALOGUE.response_ids)
    assert "".join(part.text for part in found) == TOKENIZER.decode(DIALOGUE.response_ids)
    assert keep([(0, 0)]).kept()[0].breakdown == {"question_answer_right": 1.0, "pred": "42", "score": 1.0}


def run_over(tmp_path, remote):
    handle = SimpleNamespace(local_dir=str(tmp_path / "run"))
    return SimpleNamespace(local=LocalStore(tmp_path / "run"), remote=remote, handle=handle)


def test_each_step_and_validation_is_a_file_and_processes_together_keep_no_more(tmp_path):
    log, run = DialogueLog(3), run_over(tmp_path, LocalStore(tmp_path / "store"))
    log.write(run, keep([(0, 0), (1, 0)]).kept() + keep([(2, 0), (3, 0)]).kept())
    log.write(run, keep([(0, 0)], partition=VALIDATION, step=0).kept())
    kept = from_lines((tmp_path / "store" / file_key("train", 4)).read_bytes())
    assert [item.data_index for item in kept] == [0, 1, 2]
    assert len(from_lines((tmp_path / "store" / file_key("validation", 0)).read_bytes())) == 1


def test_what_the_store_did_not_take_is_offered_again(tmp_path, caplog):
    store = tmp_path / "store"
    store.write_text("in the way")  # no folder can be made here: the store is away
    log, run = DialogueLog(3), run_over(tmp_path, LocalStore(store))
    log.write(run, keep([(0, 0)], step=1).kept())
    assert "wait for the store" in caplog.text
    store.unlink()
    log.write(run, keep([(0, 0)], step=2).kept())
    for step in (1, 2):
        assert (store / file_key("train", step)).read_bytes() == (
            tmp_path / "run" / file_key("train", step)
        ).read_bytes()
