"""Checks of a run's models at the front door: attention kernel, config, tokenizer.

Code that a model's folder ships runs only where that model's own flag says so.
"""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig

from opd.errors import RunError
from opd.experiment.errors import Problem, SpecError


class ModelUnreadable(RunError):
    """A model's files cannot be read now; another attempt may find the hub or the disk back."""

    key = "model.path"  # of the spec


@contextmanager
def reading(key: str, path: str) -> Iterator[None]:
    """Raise an error that names the key and its path for a model that transformers cannot read in the block.

    Raises:
        SpecError: the hub has no such model, or does not show it to this token.
        ModelUnreadable: the files cannot be reached or read.
    """
    try:
        yield
    except OSError as error:
        text = " ".join(str(error).split())
        if _is_for_good(error) or _is_for_good(error.__cause__):
            fix = "a folder that is there, OWNER/NAME of a model that this HF_TOKEN may read, or a store URL"
            problem = Problem(path=key, value=path, rule=f"the model cannot be read: {text}", fix=fix)
            raise SpecError([problem]) from error
        unreadable = ModelUnreadable(f"{key}={path}: the model cannot be read now: {text}")
        unreadable.key = key
        raise unreadable from error


def _is_for_good(error: BaseException | None) -> bool:
    """Return True if the hub has answered, and will answer the same again."""
    # Here, so that `--plan` and `--dry-run` need no more than the tool's own packages.
    from huggingface_hub import errors as hub

    return isinstance(error, hub.RemoteEntryNotFoundError | hub.RepositoryNotFoundError | hub.RevisionNotFoundError)


# transformers takes the flash-attn package, or the one that fetches kernels from the Hugging Face hub.
_KERNELS = {"flash_attention_2": ("flash_attn", "kernels"), "varlen": ("torch.nn.attention.varlen",)}


def check_attention(implementation: str | None) -> None:
    """Refuse an attention implementation whose kernel is not installed here; the image is every process's.

    Raises:
        SpecError: no package that has it can be found.
    """
    packages = _KERNELS.get(implementation or "", ())
    if packages and not any(importlib.util.find_spec(name) for name in packages):
        rule = f"its kernel is in the package {' or '.join(packages)}, which is not installed"
        fix = "remove the key (cuda: varlen, from torch itself), use sdpa, or install the package in the image"
        raise SpecError([Problem(path="model.attn_implementation", value=implementation, rule=rule, fix=fix)])


def load_tokenizer(model: DictConfig) -> Any:
    """Return the tokenizer of the student by its `path`, `trust_remote_code` and optionally `tokenizer_path`.

    Raises:
        SpecError, ModelUnreadable: see `check_loadable`.
    """
    from transformers import AutoTokenizer

    path, own = model.path, model.get("tokenizer_path")
    return _loaded("model", AutoTokenizer.from_pretrained, own or path, trust_remote_code=model.trust_remote_code)


def check_loadable(section: str, path: str, *, trust_remote_code: bool) -> Any:
    """Return a model's config, read as the trainer's processes will, before they are started.

    Raises:
        SpecError: it needs code of its own that `trust_remote_code` does not allow, this transformers does not know it, or
            the hub does not have it. ModelUnreadable: see `reading`.
    """
    from transformers import AutoConfig

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
        if "pip install" in str(error):  # it reads tokenizer.model with a package that is not here
            fix = "install what wrote it (sentencepiece, tiktoken), or save_pretrained the tokenizer elsewhere as tokenizer.json"
        if not trust_remote_code and "trust_remote_code" in str(error):
            key, value = "trust_remote_code", False
            fix = f"read that code, then set it to true, or {fix} without"
        problem = Problem(path=f"{section}.{key}", value=value, rule=f"{path} cannot be loaded: {error}", fix=fix)
        raise SpecError([problem]) from error
