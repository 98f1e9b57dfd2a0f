import pytest
import torch
from tests.rollout.cpu.tiny import answer_one, make_engine, tiny_model

from opd.rollout.cpu.model import WeightLoader


@pytest.mark.parametrize("tied", [False, True])
def test_loaded_weights_give_the_answers_of_the_model_they_came_from(tied):
    source, target = tiny_model(tied=tied, seed=1), tiny_model(tied=tied, seed=2)
    before = answer_one(make_engine(target), [5, 6], max_tokens=20, seed=0)
    loader = WeightLoader(target)
    loader.load(source.state_dict())
    loader.finish()
    expected = answer_one(make_engine(source), [5, 6], max_tokens=20, seed=0)
    assert before != expected
    assert answer_one(make_engine(target), [5, 6], max_tokens=20, seed=0) == expected


def test_a_tied_weight_may_come_under_either_name():
    for missing in ("lm_head.weight", "model.embed_tokens.weight"):
        source, target = tiny_model(tied=True, seed=1), tiny_model(tied=True, seed=2)
        state = dict(source.state_dict())
        del state[missing]
        loader = WeightLoader(target)
        loader.load(state)
        loader.finish()
        assert torch.equal(target.lm_head.weight, source.lm_head.weight)
