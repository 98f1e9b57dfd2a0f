import pytest
import torch

from opd.data.toy.models import STUDENT, build_model
from opd.data.toy.sft import SftConfig, encode_examples, taught_answers, train_sft
from opd.data.toy.task import Problem, all_problems, split_problems
from opd.data.toy.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()


def trained_weights(seed: int) -> dict[str, torch.Tensor]:
    config = SftConfig(num_steps=3, seed=seed, batch_size=8)
    model = build_model(STUDENT, TOKENIZER, seed=seed)
    train_sft(model, TOKENIZER, split_problems().train[:64], config, lambda step, loss: None)
    return model.state_dict()


def test_training_on_a_held_out_problem_is_refused_before_the_first_step():
    heldout = split_problems().heldout[0]
    leaked = [*split_problems().train[:8], Problem(heldout.b, heldout.a)]
    model = build_model(STUDENT, TOKENIZER, seed=0)
    with pytest.raises(ValueError, match="1 training problem"):
        train_sft(model, TOKENIZER, leaked, SftConfig(num_steps=1, seed=0), lambda step, loss: pytest.fail("a step"))


@pytest.mark.slow
def test_the_same_seed_trains_the_same_weights_and_another_seed_others():
    first, second, other = trained_weights(1), trained_weights(1), trained_weights(2)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.slow
def test_the_loss_falls():
    losses: list[float] = []
    model = build_model(STUDENT, TOKENIZER, seed=0)
    config = SftConfig(num_steps=60, seed=0, batch_size=32, num_warmup_steps=5)
    train_sft(model, TOKENIZER, split_problems().train[:32], config, lambda step, loss: losses.append(loss))
    # An untrained net over 112 tokens starts near log 112 = 4.7 nats.
    assert losses[0] > 4.0
    assert losses[-1] < 0.5 * losses[0]


def test_an_example_is_the_prompt_the_answer_and_the_end_of_the_turn():
    tokens, prompt_len = encode_examples(TOKENIZER, [Problem(7, 34)], ["041"], enable_thinking=True)
    assert TOKENIZER.decode(tokens[0, :prompt_len]) == ("<|im_start|>user\n07+34=<|im_end|>\n<|im_start|>assistant\n")
    assert TOKENIZER.decode(tokens[0, prompt_len:]) == "041<|im_end|>"


@pytest.mark.parametrize(
    ("a", "b", "without_carries"),
    [(12, 34, "046"), (7, 34, "031"), (57, 68, "015"), (99, 1, "090"), (50, 50, "000")],
)
def test_a_pupil_who_drops_carries_adds_digit_by_digit(a, b, without_carries):
    assert Problem(a, b).answer_without_carries == without_carries


def test_dropping_carries_is_right_for_the_sums_that_carry_nothing():
    # Each of two columns carries nothing for 55 of its 100 pairs of digits: 0.55 ** 2 of all problems.
    right = [p.answer_without_carries == p.answer for p in all_problems()]
    assert sum(right) == 55**2


def test_every_problem_is_taught_rightly_unless_the_config_says_otherwise():
    problems = split_problems().train
    assert taught_answers(problems, SftConfig(num_steps=1, seed=0)) == [p.answer for p in problems]


def test_the_dropped_share_is_the_configured_one_and_the_coin_is_seeded():
    problems = [p for p in split_problems().train if p.answer_without_carries != p.answer]
    config = SftConfig(num_steps=1, seed=0, dropped_carry_fraction=0.8)
    answers = taught_answers(problems, config)
    dropped = sum(answer == p.answer_without_carries for answer, p in zip(answers, problems, strict=True))
    # Some 6,600 coins: three standard deviations are 0.015.
    assert dropped / len(problems) == pytest.approx(0.8, abs=0.015)
    assert answers == taught_answers(problems, config)
    assert answers != taught_answers(problems, SftConfig(num_steps=1, seed=1, dropped_carry_fraction=0.8))
