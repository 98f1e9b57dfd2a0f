"""The rollout's copy of the model: building it and taking the trainer's weights."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch

from opd.rollout.cpu.cache import ATTENTION


def build_model(hf_config: Any, path: str | None, trust_remote_code: bool = False) -> torch.nn.Module:
    """Return a Hugging Face causal language model in fp32 with the engine's attention.

    Args:
        hf_config: the transformers config, overrides applied.
        path: folder to read weights from; None leaves them uninitialised, for a trainer that sends its own.

    Raises:
        ValueError: an attention layout the engine has no cache for.
    """
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    other = sorted(set(getattr(hf_config, "layer_types", None) or ()) - {"full_attention"})
    if other:
        raise ValueError(
            f"model_type={hf_config.model_type} has layers of {', '.join(other)}; only full_attention is known"
        )
    kwargs = {"attn_implementation": ATTENTION, "dtype": torch.float32, "trust_remote_code": trust_remote_code}
    hf_config = deepcopy(hf_config)
    if path is not None:
        model = AutoModelForCausalLM.from_pretrained(path, config=hf_config, **kwargs)
    else:
        with no_init_weights():
            model = AutoModelForCausalLM.from_config(hf_config, **kwargs)
        model.tie_weights()  # part of the initialisation that was left out
    frozen: torch.nn.Module = model.eval().requires_grad_(False)
    return frozen


def layer_shapes(hf_config: Any) -> list[tuple[int, int]]:
    """Return (key-value heads, head size) of each layer."""
    heads = hf_config.num_attention_heads
    kv_heads = getattr(hf_config, "num_key_value_heads", None) or heads
    head_dim = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // heads
    return [(kv_heads, head_dim)] * hf_config.num_hidden_layers


def check_complete(model: torch.nn.Module, came: Iterable[str]) -> None:
    """Check a set of weights by the names that came; a tied weight may come under one of its names.

    Raises:
        ValueError: names tensors that the model lacks, or that never came.
    """
    places = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    if unknown := sorted(set(came) - places.keys()):
        raise ValueError(f"weight sync: the rollout's model has no tensor {unknown[0]!r}; do both load the same model?")
    loaded = {places[name] for name in came}
    if missing := [name for name, place in places.items() if place not in loaded]:
        names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise ValueError(f"weight sync: {len(missing)} of {len(places)} tensors never came: {names}")
