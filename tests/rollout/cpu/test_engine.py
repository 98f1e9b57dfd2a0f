from bisect import bisect_left

import numpy as np
import pytest
import torch
from tests.rollout.cpu.tiny import ARCHITECTURES, VOCAB, answer_all, answer_one, make_engine, tiny_config, tiny_model
from transformers import AutoModelForCausalLM
from transformers.generation import LogitsProcessor, LogitsProcessorList

from opd.rollout.cpu.cache import prompt_bucket

PROMPTS = [[7], [3, 9], list(range(5, 22)), [1, 4] * 40, [(11 * i) % VOCAB for i in range(300)]]


class TokenizerEntriesOnly(LogitsProcessor):
    """Hides padded embedding rows from transformers' own generate."""

    def __call__(self, input_ids, scores):
        scores[:, VOCAB:] = -torch.inf
        return scores


def plain_model(architecture, tied, ours):
    """The same weights with transformers' own attention and cache."""
    model = AutoModelForCausalLM.from_config(tiny_config(architecture, tied), attn_implementation="eager")
    model.load_state_dict(ours.state_dict())
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_answers_equal_those_of_plain_transformers_generate(architecture, tied):
    # Of seeds 0 to 7 the one whose two best tokens are never close: 1.2e-4 apart at least, rounding differs by 1e-6.
    model = tiny_model(architecture, tied, seed=6)
    engine = make_engine(model)
    for i, prompt in enumerate(PROMPTS):
        engine.submit(prompt, {"temperature": 0, "max_tokens": 70, "ignore_eos": True}, str(i))
    answers = answer_all(engine)
    reference = plain_model(architecture, tied, model)
    for i, prompt in enumerate(PROMPTS):
        expected = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=70,
            eos_token_id=None,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([TokenizerEntriesOnly()]),
        )[0, len(prompt) :]
        assert answers[str(i)].token_ids == expected.tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logprobs_equal_a_full_forward_of_prompt_and_answer(architecture):
    model = tiny_model(architecture)
    engine = make_engine(model)
    for i, prompt in enumerate(PROMPTS):
        engine.submit(prompt, {"temperature": 0.8, "max_tokens": 70, "seed": i}, str(i))
    answers = answer_all(engine)
    reference = plain_model(architecture, False, model)
    for i, prompt in enumerate(PROMPTS):
        answer = answers[str(i)]
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + answer.token_ids])).logits[0, len(prompt) - 1 : -1, :VOCAB]
        expected = torch.log_softmax(logits / 0.8, -1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        assert answer.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
        assert np.exp(answer.logprobs) == pytest.approx(expected.exp().tolist(), abs=1e-6)


def test_padded_embedding_rows_are_never_sampled_and_carry_no_probability():
    model = tiny_model()
    model.lm_head.weight.data[VOCAB:] = 10.0 * model.lm_head.weight.data[:1]
    engine = make_engine(model)
    for i in range(100):
        engine.submit([i % VOCAB], {"max_tokens": 20, "temperature": 5.0, "seed": i}, str(i))
    assert max(max(answer.token_ids) for answer in answer_all(engine).values()) < VOCAB


def test_a_script_prescribes_the_tokens_and_the_model_their_probability():
    engine = make_engine(tiny_model())
    free = answer_one(engine, [5, 6], max_tokens=10, seed=1)
    engine.submit([5, 6], {"max_tokens": 10}, "scripted", script=lambda prompt: free.token_ids[:4])
    scripted = answer_all(engine)["scripted"]
    assert scripted.token_ids == free.token_ids[:4]
    assert scripted.logprobs == free.logprobs[:4]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "a prompt of 0 tokens; it needs at least one"),
        ([3] * 4096, "4096 tokens; .* room for an answer within max_model_len=4096"),
        ([3, VOCAB], r"prompt token 41 is outside \[0, 41\)"),
        ([-1], "prompt token -1 is outside"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_refused(prompt, message):
    engine = make_engine(tiny_model())
    with pytest.raises(ValueError, match=message):
        engine.submit(prompt, {}, "r")
    assert engine.num_unfinished == 0


def test_weights_that_are_not_finite_stop_the_engine():
    model = tiny_model()
    engine = make_engine(model)
    model.lm_head.weight.data[3, 0] = torch.nan
    with pytest.raises(RuntimeError, match="not finite"):
        answer_one(engine, [5], max_tokens=2)
    with pytest.raises(RuntimeError, match="not finite"):
        engine.check_rows()


def test_requests_that_wait_and_that_run_are_unfinished():
    engine = make_engine(tiny_model(), max_num_seqs=1)
    for name in "abc":
        engine.submit([5, 6], {"max_tokens": 2, "ignore_eos": True}, name)
    counts = [engine.num_unfinished]
    while engine.num_unfinished:
        engine.step()
        counts.append(engine.num_unfinished)
    assert counts == [3, 3, 2, 2, 1, 1, 0]


def test_requests_of_one_length_share_a_forward():
    model, forwards = tiny_model(), []
    engine = make_engine(model)
    model.register_forward_hook(lambda *_: forwards.append(None))
    for name in "abc":
        engine.submit([5], {"max_tokens": 1}, name)
    assert (len(engine.step()), len(forwards)) == (3, 1)


def test_prompts_are_padded_to_multiples_of_16_and_later_to_quarters_between_powers_of_two():
    lengths, asked = [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256], range(1, 257)
    assert [prompt_bucket(num) for num in asked] == [lengths[bisect_left(lengths, num)] for num in asked]
