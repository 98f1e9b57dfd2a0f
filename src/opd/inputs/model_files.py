"""What a run needs of its models, checked at the front door: attention kernel, config, tokenizer.

Code that a model's folder ships runs only where that model's own flag says so.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig
from transformers import AutoConfig, AutoTokenizer

from opd.config.errors import Problem, SpecError
from opd.inputs.loading import reading

# transformers takes the flash-attn package, or the one that fetches kernels from the Hugging Face hub.
_KERNELS = {"flash_attention_2": ("flash_attn", "kernels"), "varlen": ("torch.nn.attention.varlen",)}


def check_attention(implementation: str | None) -> None:
    """Refuse an attention implementation whose kernel is not installed here; the image is every process's.

    Raises:
        SpecError: no package that has it can be found.
    """
    packages = _KERNELS.get(implementation or "", ())
    if packages and not any(importlib.util.find_spec(name) for name in packages):
        problem = Problem(
            path="model.attn_implementation",
            value=implementation,
            rule=f"its kernel is in the package {' or '.join(packages)}, which is not installed",
            fix="remove the key (cuda: varlen, from torch itself), use sdpa, or install the package in the image",
        )
        raise SpecError([problem])


def load_tokenizer(section: str, model: DictConfig) -> Any:
    """The tokenizer of a model.

    Args:
        section: of the spec (`model`, `teacher`), for errors.
        model: `path`, `trust_remote_code` and optionally `tokenizer_path`.

    Raises:
        SpecError, ModelUnreadable: see `check_loadable`.
    """
    path, own = model.path, model.get("tokenizer_path")
    return _loaded(section, AutoTokenizer.from_pretrained, own or path, trust_remote_code=model.trust_remote_code)


def check_loadable(section: str, path: str, *, trust_remote_code: bool) -> Any:
    """A model's config, read as the trainer's processes will, before they are started.

    Raises:
        SpecError: it needs code of its own that `trust_remote_code` does not allow, this transformers does not know it, or
            the hub does not have it. ModelUnreadable: see `reading`.
    """
    return _loaded(section, AutoConfig.from_pretrained, path, trust_remote_code=trust_remote_code)


def _loaded(section: str, load: Callable[..., Any], path: str, *, trust_remote_code: bool) -> Any:
    try:
        with reading(f"{section}.path", path):
            return load(path, trust_remote_code=trust_remote_code)
    except SpecError:
        raise
    except ValueError as error:
        value: str | bool = path
        key, fix = "path", "use a model that the installed transformers knows"
        if not trust_remote_code and "trust_remote_code" in str(error):
            key, value = "trust_remote_code", False
            fix = f"read that code, then set it to true, or {fix} without"
        problem = Problem(path=f"{section}.{key}", value=value, rule=f"{path} cannot be loaded: {error}", fix=fix)
        raise SpecError([problem]) from error
