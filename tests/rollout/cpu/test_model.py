import pytest
import torch
from tests.rollout.cpu.tiny import answer_one, make_engine, tiny_config, tiny_model

from opd.rollout.cpu.model import WeightLoader, build_model, layer_shapes


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


def test_a_folder_is_read_in_fp32(tmp_path):
    source = tiny_model(seed=1)
    source.to(torch.bfloat16).save_pretrained(tmp_path)
    model = build_model(tiny_config(), str(tmp_path))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(model.lm_head.weight, source.lm_head.weight.float())


def test_weights_may_come_in_pieces_and_in_bf16():
    source, target = tiny_model(seed=1), tiny_model(seed=2)
    loader = WeightLoader(target)
    for name, tensor in source.state_dict().items():
        loader.load({name: tensor.bfloat16()})
    assert loader.finish() == len(source.state_dict())
    assert torch.equal(target.lm_head.weight, source.lm_head.weight.bfloat16().float())


def test_a_tied_weight_may_come_under_either_name():
    for missing in ("lm_head.weight", "model.embed_tokens.weight"):
        source, target = tiny_model(tied=True, seed=1), tiny_model(tied=True, seed=2)
        state = dict(source.state_dict())
        del state[missing]
        loader = WeightLoader(target)
        loader.load(state)
        loader.finish()
        assert torch.equal(target.lm_head.weight, source.lm_head.weight)


def test_a_tied_weight_with_two_values_is_refused():
    state = {name: tensor.clone() for name, tensor in tiny_model(tied=True).state_dict().items()}
    state["lm_head.weight"] += 1.0
    with pytest.raises(ValueError, match="one tied weight here but came with different values"):
        WeightLoader(tiny_model(tied=True)).load(state)


def test_a_missing_tensor_is_named():
    state = dict(tiny_model().state_dict())
    del state["lm_head.weight"]
    loader = WeightLoader(tiny_model())
    loader.load(state)
    with pytest.raises(ValueError, match=r"1 of \d+ tensors never came: lm_head\.weight"):
        loader.finish()


def test_an_unknown_tensor_is_named():
    with pytest.raises(ValueError, match="no tensor 'extra'"):
        WeightLoader(tiny_model()).load({"extra": torch.zeros(1)})


def test_another_shape_is_named():
    with pytest.raises(ValueError, match=r"lm_head\.weight is \(41, 32\) at the trainer and \(48, 32\) at the rollout"):
        WeightLoader(tiny_model()).load({"lm_head.weight": torch.zeros(41, 32)})


def test_layers_without_a_plain_cache_are_refused():
    with pytest.raises(ValueError, match="layers of sliding_attention"):
        build_model(tiny_config("qwen2", layer_types=["full_attention", "sliding_attention"]), None)


def test_layer_shapes_follow_the_config():
    assert layer_shapes(tiny_config()) == [(2, 8), (2, 8)]
