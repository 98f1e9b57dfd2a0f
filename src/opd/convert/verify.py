"""The check of a conversion: plain transformers loads the folder, and it computes what the checkpoint computes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from opd.convert.errors import ConvertError
from opd.convert.merger import ShardMerger

TEXTS = ("What is 12 + 34?", "def fibonacci(n: int) -> int:", "用一句话介绍你自己。")
# Of the whole embedding, padded rows included.
NUM_RANDOM_TOKENS = 32
# Weights are compared bit for bit, so that logits may differ only by the order of a kernel's sums.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def verify(folder: Path, merger: ShardMerger, dtypes: Mapping[str, torch.dtype]) -> dict[str, Any]:
    """Load `folder` as its users will, compare it with the checkpoint after the same cast, and return what was compared.

    One model is in memory at a time. `max_difference` is the largest of two logits, relative to the largest logit.

    Args:
        dtypes: dtype of each tensor after the cast.

    Raises:
        ConvertError: a tensor or a logit differs, or transformers finds names that are missing or too many.
    """
    auto_class: Any = AutoModelForCausalLM
    converted, info = auto_class.from_pretrained(folder, trust_remote_code=merger.trusts, output_loading_info=True)
    if problems := {key: sorted(map(str, names)) for key, names in info.items() if key.endswith("_keys") and names}:
        raise ConvertError(f"transformers does not find the model's weights in the written folder: {problems}")
    loaded = converted.state_dict()
    for name in merger.names():
        if not torch.equal(loaded[name], merger.tensor(name).to(dtypes[name]).to(loaded[name].dtype)):
            raise ConvertError(f"{name} of the written model is not the checkpoint's after the cast to {dtypes[name]}")
    loaded_dtypes = {name: tensor.dtype for name, tensor in loaded.items()}
    tokenizer = None
    if list(folder.glob("tokenizer*")):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=merger.trusts)
    prompts = make_prompts(tokenizer, converted.config.get_text_config())
    ours, dtype = _logits(converted, prompts), converted.dtype
    del converted, loaded
    # The checkpoint's own config and weights; nothing of the written folder is in it.
    reference = merger.empty_model(dtype)
    state = {name: merger.tensor(name).to(dtypes[name]).to(loaded_dtypes[name]) for name in merger.names()}
    reference.load_state_dict(state, strict=False, assign=True)  # names were checked; a tied tensor may be there once
    reference.tie_weights()
    return {
        "num_tensors": len(loaded_dtypes),
        "num_prompts": len(prompts),
        "num_tokens": sum(map(len, prompts)),
        "max_difference": _difference(ours, _logits(reference, prompts), _TOLERANCE[dtype]),
    }


def describe(verified: Mapping[str, Any]) -> str:
    """Return the result of `verify` as a sentence."""
    difference = verified["max_difference"]
    logits = "equal bit for bit" if difference == 0 else f"equal to {difference:.1e}"
    return (
        f"{verified['num_tensors']} tensors equal bit for bit, logits of {verified['num_prompts']} prompts "
        f"({verified['num_tokens']} tokens) {logits}"
    )


def _difference(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], tolerated: float) -> float:
    """Return the largest difference of [T, V] logits, relative to the largest logit of the same prompt, or raise if it is too large."""
    largest = 0.0
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True), start=1):
        difference = ((mine - other).abs().max() / other.abs().max().clamp(min=1e-30)).item()
        if not difference <= tolerated:  # nan is no agreement
            raise ConvertError(
                f"the written model's logits differ from the checkpoint's on prompt {number} by {difference:.2e} of the "
                f"largest one; at most {tolerated:.0e} is tolerated"
            )
        largest = max(largest, difference)
    return largest


def make_prompts(tokenizer: Any, config: Any) -> list[list[int]]:
    """Return token ids of a few texts, and of a seeded random row."""
    length = min(NUM_RANDOM_TOKENS, getattr(config, "max_position_embeddings", None) or NUM_RANDOM_TOKENS)
    row = torch.randint(config.vocab_size, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    texts = [list(tokenizer(text)["input_ids"])[:length] for text in TEXTS] if tokenizer is not None else []
    return [ids for ids in (row, *texts) if ids]


@torch.no_grad()
def _logits(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return fp32 [T, V] of each prompt."""
    model.eval()
    return [model(input_ids=torch.tensor([list(row)])).logits[0].float() for row in prompts]
