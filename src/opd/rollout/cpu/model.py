"""The rollout's copy of the model: building it and taking the trainer's weights."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch

from opd.rollout.cpu.cache import ATTENTION


def build_model(hf_config: Any, path: str | None, trust_remote_code: bool = False) -> torch.nn.Module:
    """A Hugging Face causal language model in fp32 with the engine's attention.

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
    """(key-value heads, head size) of each layer."""
    heads = hf_config.num_attention_heads
    kv_heads = getattr(hf_config, "num_key_value_heads", None) or heads
    head_dim = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // heads
    return [(kv_heads, head_dim)] * hf_config.num_hidden_layers


class WeightLoader:
    """One transfer of a full set of weights, in as many pieces as the sender likes.

    Every tensor is checked by name and shape when it comes; `finish` refuses a set that is not complete. A tied weight
    may come under one of its names or under both with the same values.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._targets: dict[str, torch.Tensor] = dict(model.state_dict(keep_vars=False))
        self._received: dict[int, str] = {}

    @torch.inference_mode()
    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy a piece into the model.

        Raises:
            ValueError: an unknown name, another shape, or two different values for one tied weight.
        """
        for name, tensor in tensors.items():
            target = self._targets.get(name)
            if target is None:
                raise ValueError(
                    f"weight sync: the rollout's model has no tensor {name!r}; do both load the same model?"
                )
            if target.shape != tensor.shape:
                raise ValueError(
                    f"weight sync: {name} is {tuple(tensor.shape)} at the trainer and {tuple(target.shape)} at the rollout"
                )
            tensor = tensor.to(target.dtype)
            twin = self._received.get(target.data_ptr())
            if twin is not None and not torch.equal(target, tensor):
                raise ValueError(
                    f"weight sync: {name} and {twin} are one tied weight here but came with different values"
                )
            target.copy_(tensor)
            self._received[target.data_ptr()] = name

    @property
    def num_received(self) -> int:
        return len(self._received)

    def finish(self) -> int:
        """Number of distinct tensors received.

        Raises:
            ValueError: names the tensors that never came.
        """
        missing = [name for name, target in self._targets.items() if target.data_ptr() not in self._received]
        if missing:
            raise ValueError(
                f"weight sync: {len(missing)} of {len(self._targets)} tensors never came: {', '.join(missing[:5])}"
                + (", ..." if len(missing) > 5 else "")
            )
        return len(self._received)
