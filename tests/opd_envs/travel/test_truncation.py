"""Truncation: at most so many tokens, a true beginning of the text, cut between tokens and characters, and marked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.opd_envs.travel.tokenizers_under_test import byte_level_bpe

from opd.agent.shared import TRUNCATION_MARK, truncate_reply

TOKENIZER = byte_level_bpe()
TEXTS = st.text(alphabet=st.sampled_from('ab{}":, 酒店火锅🏯é\n'), max_size=200)


def num_tokens(text: str) -> int:
    return len(TOKENIZER(text, add_special_tokens=False)["input_ids"])


MARK_TOKENS = num_tokens(TRUNCATION_MARK)


@given(text=TEXTS, max_tokens=st.integers(MARK_TOKENS + 1, 120))
def test_a_reply_is_whole_or_a_marked_beginning_within_the_limit(text, max_tokens):
    shortened, truncated = truncate_reply(text, tokenizer=TOKENIZER, max_tokens=max_tokens)
    assert num_tokens(shortened) <= max_tokens
    assert truncated == (num_tokens(text) > max_tokens)
    if not truncated:
        assert shortened == text
        return
    assert shortened.endswith(TRUNCATION_MARK)
    kept = shortened.removesuffix(TRUNCATION_MARK)
    assert text.startswith(kept)
    # On a token boundary: what is kept is exactly the text of the first tokens.
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    prefixes = {TOKENIZER.decode(ids[:n]) for n in range(len(ids) + 1)}
    assert kept in prefixes


@given(text=TEXTS, max_tokens=st.integers(MARK_TOKENS + 1, 60))
def test_no_more_is_cut_than_the_mark_and_a_split_character_need(text, max_tokens):
    shortened, truncated = truncate_reply(text, tokenizer=TOKENIZER, max_tokens=max_tokens)
    if truncated:
        # A character has at most four bytes and so four tokens; the seam may cost as many again.
        assert num_tokens(shortened.removesuffix(TRUNCATION_MARK)) >= max_tokens - MARK_TOKENS - 8


def test_a_character_of_several_tokens_is_kept_or_dropped_whole():
    text = "🏯" * 40
    assert num_tokens("🏯") > 1
    for max_tokens in range(MARK_TOKENS + 1, MARK_TOKENS + 20):
        shortened, _ = truncate_reply(text, tokenizer=TOKENIZER, max_tokens=max_tokens)
        assert set(shortened.removesuffix(TRUNCATION_MARK)) <= {"🏯"}


def test_a_megabyte_is_cut_without_tokenising_all_of_it():
    shortened, truncated = truncate_reply("a " * 500_000, tokenizer=TOKENIZER, max_tokens=MARK_TOKENS + 10)
    assert truncated
    assert num_tokens(shortened) == MARK_TOKENS + 10


def test_a_limit_that_holds_not_even_the_mark_is_refused_with_the_key_to_raise():
    with pytest.raises(ValueError, match=r"agent.max_tool_response_length = 1: the mark .* does not fit; raise it"):
        truncate_reply("abcdef 12345", tokenizer=TOKENIZER, max_tokens=1)
