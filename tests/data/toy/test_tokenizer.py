import itertools
import string

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from opd.data.toy.tokenizer import END_OF_TURN, PADDING, UNKNOWN, build_tokenizer

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


def test_printable_ascii_survives_a_round_trip(tokenizer):
    text = "".join(c for c in string.printable if c not in "\t\r\x0b\x0c") + " the user's tools, \\boxed{41} system"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.unk_token_id not in tokenizer.encode(text)


def test_a_character_it_does_not_know_becomes_one_unknown_token(tokenizer):
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("1é\t2")) == ["1", UNKNOWN, UNKNOWN, "2"]


def test_end_of_turn_ends_generation_and_padding_is_another_token(tokenizer):
    assert (tokenizer.eos_token, tokenizer.pad_token) == (END_OF_TURN, PADDING)
    assert len(tokenizer) == 112
    assert sorted(tokenizer.get_vocab().values()) == list(range(112))


def test_decoding_without_special_tokens_leaves_the_answer(tokenizer):
    assert tokenizer.decode(tokenizer.encode("041" + END_OF_TURN), skip_special_tokens=True) == "041"


def test_decoding_without_special_tokens_keeps_what_a_tool_parser_reads(tokenizer):
    text = '<tool_call>\n{"name": "add"}\n</tool_call>'
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


def test_a_user_turn_costs_fourteen_tokens(tokenizer):
    encoded = tokenizer.apply_chat_template([USER], add_generation_prompt=True)
    assert tokenizer.convert_ids_to_tokens(encoded["input_ids"]) == [
        *("<|im_start|>", "user", "\n", *"07+34=", "<|im_end|>", "\n"),
        *("<|im_start|>", "assistant", "\n"),
    ]


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


def test_tools_are_listed_after_the_system_message(tokenizer):
    assert render(tokenizer, [SYSTEM, USER], tools=[CALL]).startswith(
        "<|im_start|>system\nAnswer with three digits.\n\n<tools>\n"
        '{"type": "function", "function": {"name": "add", "arguments": {"a": 7, "b": 34}}}\n</tools><|im_end|>\n'
        "<|im_start|>user\n"
    )


def test_a_longer_conversation_begins_with_the_shorter_one(tokenizer):
    # Multi-turn rollouts append tokens: a template that rewrote earlier turns would break the prefix.
    conversation = [SYSTEM, USER, {"role": "assistant", "content": "041"}, {"role": "tool", "content": "41"}, USER]
    rendered = [render(tokenizer, conversation[:n]) for n in range(1, len(conversation) + 1)]
    assert all(longer.startswith(shorter) for shorter, longer in itertools.pairwise(rendered))


def test_an_unknown_role_is_refused(tokenizer):
    with pytest.raises(Exception, match="unknown role critic"):
        render(tokenizer, [USER, {"role": "critic", "content": "no"}])
