"""Which tokens end an answer."""

from __future__ import annotations

from verl.workers.config import HFModelConfig


def end_tokens(model: HFModelConfig) -> tuple[int, ...]:
    """The tokenizer's end token and all of the generation config's, as in vLLM, ascending."""
    ends = {model.tokenizer.eos_token_id}
    if model.generation_config is not None:
        ids = model.generation_config.eos_token_id
        ends |= set(ids) if isinstance(ids, list) else {ids}
    return tuple(sorted(ends - {None}))
