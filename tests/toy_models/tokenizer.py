"""The toy tokenizer: printable ASCII characters, ChatML's special tokens and a whole-word token for each role."""

import string

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from opd.data.toy import STUDENT_DIR

END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
UNKNOWN = "<|unknown|>"
CONTROL_TOKENS = (PADDING, "<|im_start|>", END_OF_TURN, UNKNOWN)
"""Never part of a text: decoding with `skip_special_tokens=True` leaves them out."""
MARKUP_TOKENS = (
    "<think>",
    "</think>",
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""Text that a parser reads, so decoding keeps it (as Qwen3's tokenizer does)."""
ROLE_TOKENS = ("system", "user", "assistant", "tool")
"""One token a role: the whole prompt of a problem is then 14 tokens long."""
CHARACTERS = string.printable.removesuffix("\t\n\r\x0b\x0c") + "\n"
"""Digits, letters, punctuation, space and newline; any other character becomes UNKNOWN."""

MODEL_MAX_LENGTH = 1024


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a new tokenizer of exactly 112 tokens, with eos `<|im_end|>` and padding `<|endoftext|>`.

    Its chat template knows system, user, assistant and tool turns, `tools` and `add_generation_prompt`. As in Qwen3,
    `enable_thinking=False` adds an empty think block to the generation prompt, and no other value adds anything. The toy
    models never think. They have learnt to answer after either prompt.
    """
    vocabulary = {
        token: index for index, token in enumerate([*CONTROL_TOKENS, *MARKUP_TOKENS, *ROLE_TOKENS, *CHARACTERS])
    }
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()  # the default would put a space between two characters
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROL_TOKENS])
    words = (*MARKUP_TOKENS, *ROLE_TOKENS)
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in words])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=MODEL_MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (STUDENT_DIR / "chat_template.jinja").read_text()
    return tokenizer
