"""The check behind a conversion: plain transformers loads the folder, and it computes what the checkpoint computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from opd.convert.errors import ConvertError
from opd.convert.export import empty_model
from opd.convert.merger import ShardMerger

TEXTS = (
    "What is 12 + 34?",
    "Explain in one sentence why the sky is blue.",
    "def fibonacci(n: int) -> int:",
    "用一句话介绍你自己。",
)
MAX_PROMPT_TOKENS = 64
# Over the whole embedding, padded rows included.
NUM_RANDOM_TOKENS = 32
# Weights are compared bit for bit, so that logits may differ only by the order of a kernel's sums: what fp32 and 16-bit
# formats (8 bits of mantissa in bf16) leave of the largest logit.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was compared; `max_difference` is the largest difference of two logits, relative to the largest logit."""

    num_tensors: int
    num_prompts: int
    num_tokens: int
    max_difference: float

    def describe(self) -> str:
        logits = "equal bit for bit" if self.max_difference == 0 else f"equal to {self.max_difference:.1e}"
        return (
            f"{self.num_tensors} tensors equal bit for bit, logits of {self.num_prompts} prompts "
            f"({self.num_tokens} tokens) {logits}"
        )

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


def verify(folder: Path, merger: ShardMerger, dtypes: Mapping[str, torch.dtype]) -> Verification:
    """Load `folder` as its users will and compare it with the checkpoint after the same cast.

    One model is in memory at a time.

    Args:
        dtypes: what each tensor was cast to.

    Raises:
        ConvertError: a tensor or a logit differs, or transformers finds names that are missing or too many.
    """
    trust = merger.config.trust_remote_code
    converted, info = merger.get_transformers_auto_model_class().from_pretrained(
        folder, trust_remote_code=trust, output_loading_info=True
    )
    problems = {key: sorted(map(str, names)) for key, names in info.items() if key.endswith("_keys") and names}
    if problems:
        raise ConvertError(f"transformers does not find the model's weights in the written folder: {problems}")
    loaded_dtypes = _compare_weights(converted, merger, dtypes)
    prompts = make_prompts(_tokenizer(folder, trust), converted.config.get_text_config())
    ours = _logits(converted, prompts)
    dtype = converted.dtype
    del converted
    theirs = _logits(_reference(merger, dtypes, loaded_dtypes, dtype), prompts)
    return Verification(
        num_tensors=len(loaded_dtypes),
        num_prompts=len(prompts),
        num_tokens=sum(map(len, prompts)),
        max_difference=compare_logits(ours, theirs, dtype),
    )


def compare_logits(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], dtype: torch.dtype) -> float:
    """The largest difference, relative to the largest logit of the same prompt.

    Args:
        ours, theirs: one [T, V] float tensor a prompt.
        dtype: of the models, which decides what is tolerated.

    Raises:
        ConvertError: more than tolerated, or a logit that is not finite.
    """
    largest = 0.0
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True), start=1):
        difference = ((mine - other).abs().max() / other.abs().max().clamp(min=1e-30)).item()
        if not difference <= _TOLERANCE[dtype]:  # nan is no agreement
            raise ConvertError(
                f"the written model's logits differ from the checkpoint's on prompt {number} by {difference:.2e} of the "
                f"largest one; at most {_TOLERANCE[dtype]:.0e} is tolerated in {dtype}"
            )
        largest = max(largest, difference)
    return largest


def make_prompts(tokenizer: PreTrainedTokenizerBase | None, config: Any) -> list[list[int]]:
    """Token ids of a few texts, through the chat template where there is one, and of a seeded random row."""
    length = min(MAX_PROMPT_TOKENS, getattr(config, "max_position_embeddings", None) or MAX_PROMPT_TOKENS)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(config.vocab_size, (min(NUM_RANDOM_TOKENS, length),), generator=generator).tolist()]
    if tokenizer is not None:
        rows += [_encode(tokenizer, text)[:length] for text in TEXTS]
    return [row for row in rows if row]


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    if not tokenizer.chat_template:
        return list(tokenizer(text)["input_ids"])
    message = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(str(rendered), add_special_tokens=False)["input_ids"])


def _tokenizer(folder: Path, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
    if not list(folder.glob("tokenizer*")):
        return None
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)


def _compare_weights(
    converted: PreTrainedModel, merger: ShardMerger, dtypes: Mapping[str, torch.dtype]
) -> dict[str, torch.dtype]:
    """The dtype each tensor was loaded in; its values must be the checkpoint's, bit for bit."""
    loaded = converted.state_dict()
    for name in merger.names():
        expected = merger.tensor(name).to(dtypes[name]).to(loaded[name].dtype)
        if not torch.equal(loaded[name], expected):
            raise ConvertError(f"{name} of the written model is not the checkpoint's after the cast to {dtypes[name]}")
    return {name: tensor.dtype for name, tensor in loaded.items()}


def _reference(
    merger: ShardMerger,
    dtypes: Mapping[str, torch.dtype],
    loaded_dtypes: Mapping[str, torch.dtype],
    dtype: torch.dtype,
) -> PreTrainedModel:
    """The checkpoint's own config with the checkpoint's own weights; nothing of the written folder is in it."""
    model = empty_model(merger, dtype)
    state = {name: merger.tensor(name).to(dtypes[name]).to(loaded_dtypes[name]) for name in merger.names()}
    model.load_state_dict(state, strict=False, assign=True)  # names were checked; a tied one may be there once
    model.tie_weights()
    model.eval()
    return model


@torch.no_grad()
def _logits(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """[T, V] fp32 a prompt."""
    model.eval()
    return [model(input_ids=torch.tensor([list(row)])).logits[0].float() for row in prompts]
