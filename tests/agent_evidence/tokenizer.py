"""A small tokenizer for tool conversations: words of the tasks, single digits, bytes for everything else."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TURN, PADDING = "<|im_end|>", "<|endoftext|>"
CONTROL_TOKENS = (PADDING, "<|im_start|>", END_OF_TURN)
MARKUP_TOKENS = (
    "<think>", "</think>", "<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    "<answer>", "</answer>",
)  # fmt: skip
"""Text that a parser reads, so decoding keeps it (as Qwen3's tokenizer does)."""
JSON_TOKENS = ('{"name": "', '", "arguments": {"', '": "', '", "', '"}}', '{"', '": ')
"""Runs of punctuation between the words of a call and of a reply."""
MAX_WORDS = 640
"""Size of the vocabulary before markup; the bytes are 256 of it."""
MODEL_MAX_LENGTH = 4096

# A name is one token, or a few, in every place: a copied name must look the same on both sides. So spaces and
# punctuation are pieces of their own, and each Chinese character, and digits: a price is read and written digit by digit.
_PIECES = Regex(r"\d|\s|[\x{4e00}-\x{9fff}]|[a-zA-Z]+|[^\W\d_]|[^\w\s]|_")


def build_tokenizer(texts: Iterable[str], max_words: int = MAX_WORDS) -> PreTrainedTokenizerFast:
    """A tokenizer whose words come from `texts`; any text of any language can be written, at worst byte by byte.

    Its chat template is the toy task's, but lists tools by name alone. A model of a few hundred thousand weights cannot
    read JSON schemas, and a prompt of thousands of tokens would make each step minutes.
    """
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max_words,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    added = (*MARKUP_TOKENS, *JSON_TOKENS)
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in added])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        padding_side="left",
        model_max_length=MODEL_MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = Path(__file__).with_name("chat_template.jinja").read_text()
    return tokenizer
