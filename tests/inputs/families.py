"""Tokenizers laid out as real families are: byte-level BPE, then added tokens whose ids follow the pieces."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

# The split that Qwen2 to Qwen3 have in common: contractions, words, single digits, punctuation, blanks.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEXT = ("the teacher reads what the student writes, and the student learns from the difference 0 1 2 3",) * 3

# In the order of their ids, the first right after the pieces.
QWEN2_5 = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
)  # fmt: skip
QWEN3 = (*QWEN2_5, "<tool_response>", "</tool_response>", "<think>", "</think>")
# Distilled from R1 into Qwen2.5: the same ids, seven of them with other names.
R1_QWEN = (
    "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>", "<|EOT|>", "<think>", "</think>",
    *QWEN2_5[7:],
)  # fmt: skip

QWEN_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


@functools.cache
def _pieces() -> str:
    """Return tokenizer.json of the pieces alone: the 256 bytes and 60 merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_SPLIT), "isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=316, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer.to_str()


def num_pieces() -> int:
    return len(Tokenizer.from_str(_pieces()).get_vocab())


def save_tokenizer(
    folder: Path,
    added: Sequence[str],
    *,
    eos: str,
    rows: int = 384,
    template: str | None = None,
    model_type: str = "qwen3",
    changed: dict | None = None,
) -> str:
    """Save a model folder without weights: tokenizer files, and a config.json with `rows` rows of embedding.

    transformers chooses the class that reads the files by `model_type`. `changed` replaces sections of tokenizer.json.
    """
    backend = Tokenizer.from_str(json.dumps(json.loads(_pieces()) | (changed or {})))
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in added])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, pad_token=added[0])
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    if not (folder / "config.json").exists():
        (folder / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": rows}))
    return str(folder)
