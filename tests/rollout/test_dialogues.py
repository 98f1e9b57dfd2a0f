"""The conversations that a run keeps."""

from __future__ import annotations

import random
from types import SimpleNamespace

from tests.agent.talk import END, TOKENIZER, call, talk

from opd.agent.trajectories import file_key
from opd.rollout.dialogues import DialogueKeeper, DialogueLog
from opd.rollout.seeds import TRAIN

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


def test_a_step_s_conversations_are_one_file_of_the_run():
    kept = {}
    DialogueLog(1).write(SimpleNamespace(keep=lambda files: kept.update(files)), keep([(0, 0), (1, 0)], step=2).kept())
    assert list(kept) == [file_key("train", 2)]
    assert kept[file_key("train", 2)].count(b"\n") == 1
