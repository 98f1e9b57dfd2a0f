import itertools

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from opd.data.toy.tokenizer import build_tokenizer

USER = {"role": "user", "content": "07+34="}
SYSTEM = {"role": "system", "content": "Answer with three digits."}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 7, "b": 34}}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> PreTrainedTokenizerBase:
    """Saved and read back by plain transformers: what a user of the folder gets."""
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def render(tokenizer, messages, **kwargs) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)


def test_thinking_off_adds_an_empty_think_block_and_thinking_on_adds_nothing(tokenizer):
    plain = render(tokenizer, [USER], add_generation_prompt=True)
    assert render(tokenizer, [USER], add_generation_prompt=True, enable_thinking=True) == plain
    assert render(tokenizer, [USER], add_generation_prompt=True, enable_thinking=False) == (
        plain + "<think>\n\n</think>\n\n"
    )


def test_every_role_has_its_turn(tokenizer):
    conversation = [
        SYSTEM,
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "41"},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "041"},
    ]
    assert render(tokenizer, conversation) == (
        "<|im_start|>system\nAnswer with three digits.<|im_end|>\n"
        "<|im_start|>user\n07+34=<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 7, "b": 34}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n41\n</tool_response>\n<tool_response>\n42\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n041<|im_end|>\n"
    )


def test_a_longer_conversation_begins_with_the_shorter_one(tokenizer):
    # Multi-turn rollouts append tokens: a template that rewrote earlier turns would break the prefix.
    conversation = [SYSTEM, USER, {"role": "assistant", "content": "041"}, {"role": "tool", "content": "41"}, USER]
    rendered = [render(tokenizer, conversation[:n]) for n in range(1, len(conversation) + 1)]
    assert all(longer.startswith(shorter) for shorter, longer in itertools.pairwise(rendered))
