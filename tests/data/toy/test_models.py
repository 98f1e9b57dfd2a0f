import dataclasses

import pytest
import torch

from opd.data.toy.models import STUDENT, TEACHER, build_model
from opd.data.toy.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()


def test_a_seed_decides_the_initial_weights():
    first, second, other = (build_model(STUDENT, TOKENIZER, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_is_tied_only_on_request(tied):
    model = build_model(STUDENT, TOKENIZER, seed=0, tie_word_embeddings=tied)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused():
    small = dataclasses.replace(TEACHER, num_vocab_rows=64)
    with pytest.raises(ValueError, match="num_vocab_rows = 64: must be at least 112"):
        build_model(small, TOKENIZER, seed=0)
