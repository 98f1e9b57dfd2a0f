"""Truncation of a tool's reply: at most so many tokens, cut between tokens and characters, and marked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from opd.agent.loop import TRUNCATION_MARK, truncate_reply

CORPUS = ['{"hotels": [{"name": "Jade Inn", "price": 437}]}', "the plan of a trip", "酒店 酒店 火锅"]
TEXTS = st.text(alphabet=st.sampled_from('ab{}":, 酒店火锅🏯é\n'), max_size=200)


def byte_level_bpe() -> PreTrainedTokenizerFast:
    """Return a tokenizer to which a Chinese character is several tokens, as in a real vocabulary's corners."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=["<|im_end|>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")


TOKENIZER = byte_level_bpe()


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


MARK_TOKENS = len(ids_of(TRUNCATION_MARK))


@given(text=TEXTS, max_tokens=st.integers(MARK_TOKENS + 1, 120))
def test_a_reply_is_whole_or_a_marked_beginning_within_the_limit(text, max_tokens):
    shortened, truncated = truncate_reply(text, tokenizer=TOKENIZER, max_tokens=max_tokens)
    ids = ids_of(text)
    assert len(ids_of(shortened)) <= max_tokens
    assert truncated == (len(ids) > max_tokens)
    if not truncated:
        assert shortened == text
        return
    kept = shortened.removesuffix(TRUNCATION_MARK)
    assert kept != shortened
    assert text.startswith(kept)
    assert kept in {TOKENIZER.decode(ids[:n]) for n in range(len(ids) + 1)}  # the text of the first tokens
    # A character has at most four bytes and so four tokens; the seam may cost as many again.
    assert len(ids_of(kept)) >= max_tokens - MARK_TOKENS - 8


def test_a_megabyte_is_cut_without_tokenising_all_of_it():
    shortened, truncated = truncate_reply("a " * 500_000, tokenizer=TOKENIZER, max_tokens=MARK_TOKENS + 10)
    assert (truncated, len(ids_of(shortened))) == (True, MARK_TOKENS + 10)


def test_a_limit_below_the_mark_is_rejected():
    with pytest.raises(ValueError, match=r"agent.max_tool_response_length = 1: the mark .* does not fit; raise it"):
        truncate_reply("abc", tokenizer=TOKENIZER, max_tokens=1)
