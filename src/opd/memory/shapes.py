"""Computes a model's sizes from its config.json alone: parameters, layers, and bytes of activations a token."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from opd.errors import StoreUnavailable
from opd.experiment.defaults import context_of
from opd.store.access import is_store_url, open_url
from opd.store.remote import open_store

MAX_REASON_CHARS = 400


class Unplannable(ValueError):
    """A model whose config does not say its sizes in the way of Llama and its relatives."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder with grouped-query attention and gated feed-forward layers (dense, or a mixture of experts).

    Attributes:
        vocab_rows: rows of embedding and head, padding included.
        tied: embedding and head are one tensor.
        num_experts: 0 for dense layers; else each layer has as many, of which a token visits `experts_per_token`.
        context: tokens of the longest row; None: its config does not say.
    """

    vocab_rows: int
    hidden: int
    layers: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    tied: bool
    attention_bias: bool = False
    qk_norm: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    context: int | None = None

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def head_params(self) -> int:
        """Entries of the output head (also those of the embedding)."""
        return self.vocab_rows * self.hidden

    @property
    def layer_params(self) -> int:
        """Entries of one layer: q, k, v, o, the feed-forward's three matrices (and a router), two norms."""
        attention = 2 * self.hidden * (self.query_width + self.key_width)
        if self.attention_bias:
            attention += self.query_width + 2 * self.key_width
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        router = self.num_experts * self.hidden
        return attention + norms + router + max(1, self.num_experts) * 3 * self.hidden * self.intermediate

    @property
    def num_params(self) -> int:
        return self.layers * self.layer_params + (1 if self.tied else 2) * self.head_params + self.hidden

    @property
    def backbone_params(self) -> int:
        """Entries of the layers that a token visits: of a mixture of experts not all."""
        unused = max(0, self.num_experts - self.experts_per_token) * 3 * self.hidden * self.intermediate
        return self.layers * (self.layer_params - unused)

    def adapter_params(self, rank: int, modules: Collection[str]) -> int:
        """Entries of LoRA adapters on the linear layers of these names, or on `all-linear`: rank * (in + out) each.

        Experts and their router are no linear layers in transformers, and get none.
        """
        hidden, query, key = self.hidden, self.query_width, self.key_width
        widths = {"q_proj": hidden + query, "k_proj": hidden + key, "v_proj": hidden + key, "o_proj": query + hidden}
        if not self.num_experts:
            widths |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), hidden + self.intermediate)
        return (
            self.layers
            * rank
            * sum(width for name, width in widths.items() if "all-linear" in modules or name in modules)
        )

    def saved_bytes(self, width: int, *, frozen: bool = False) -> int:
        """Bytes a token and layer that autograd keeps for the backward, in `width`-byte precision.

        transformers' modules as they are: an RMS norm keeps its input in fp32 and its result before its weight, which only the
        weight's gradient reads (4 + width bytes an entry, on the hidden states twice and on queries and keys once); products keep
        the results of the norms on the hidden states, the attention queries and keys after the rotation, values and its output; the
        feed-forward keeps gate, its activation, the other branch and their product (width each). What a token has one number of is left out.

        Args:
            frozen: adapters alone are trained, on all linear layers, so that these keep their inputs all the same.
        """
        norms = 2 * self.hidden + (self.query_width + self.key_width if self.qk_norm else 0)
        attention = 2 * self.query_width + 2 * self.key_width
        experts = max(1, self.experts_per_token)
        kept = 2 * self.hidden + attention + 4 * experts * self.intermediate
        return norms * (4 if frozen else 4 + width) + width * kept

    def compiled_bytes(self, width: int) -> int:
        """Bytes a token and layer that a compiled layer keeps for its backward where it recomputes least; an estimate.

        Torch's partitioner keeps what products and norms read (each norm's input and result on the hidden states, the
        attention's output, the feed-forward's gate, other branch and their product), the queries, keys and values of the
        attention, and queries and keys once more before their own norms; `width` each. It makes again the rest. For
        Qwen3-1.7B in bf16 71,680; measured 71,400 (tests/benchmarks/gpu/NOTES.md).
        """
        attention = 2 * self.query_width + 2 * self.key_width
        if self.qk_norm:
            attention += self.query_width + self.key_width
        return width * (4 * self.hidden + attention + 3 * max(1, self.experts_per_token) * self.intermediate)

    def transient_bytes(self, width: int) -> int:
        """Bytes a token that a forward without gradient has at once in its widest layer; an estimate.

        The residual stream and a norm's input in fp32, and either queries, keys, values and output or the feed-forward's
        gate, activation and other branch.
        """
        stream = self.hidden * (2 * width + 4)
        attention = width * (2 * self.query_width + 2 * self.key_width) + 4 * self.query_width
        return stream + max(attention, 3 * width * max(1, self.experts_per_token) * self.intermediate)


def shape_of(config: Mapping[str, Any], name: str) -> ModelShape:
    """The sizes that a Hugging Face config names.

    Raises:
        Unplannable: a size is missing.
    """
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        kind = str(config.get("model_type", ""))
        experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
        return ModelShape(
            vocab_rows=int(config["vocab_size"]),
            hidden=hidden,
            layers=int(config["num_hidden_layers"]),
            intermediate=int((config.get("moe_intermediate_size") if experts else None) or config["intermediate_size"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            tied=bool(config.get("tie_word_embeddings", False)),
            attention_bias=kind == "qwen2" or bool(config.get("attention_bias", False)),
            qk_norm=kind.startswith("qwen3"),
            num_experts=experts,
            experts_per_token=int(config.get("num_experts_per_tok") or 0) if experts else 0,
            context=context_of(config),
        )
    except KeyError as missing:
        raise Unplannable(
            f"{name}: its config.json has no {missing}; the memory plan knows decoders whose config names their sizes "
            "as Llama's and Qwen's do"
        ) from None


def read_shape(path: str, *, revision: str | None = None) -> ModelShape:
    """The sizes of a model in a folder, behind a store URL or on the Hugging Face hub; only its config.json is read.

    Raises:
        Unplannable: there is no config, or it does not name the sizes. StoreUnavailable: the store is away.
    """
    try:
        config = json.loads(_config_text(path, revision))
    except StoreUnavailable:
        raise
    except Exception as error:  # of whatever library reads the store or the hub, each with classes of its own
        what = shorten(str(error), MAX_REASON_CHARS)
        raise Unplannable(
            f"{path}: its config.json cannot be read ({type(error).__name__}: {what}); name a folder that has one, OWNER/NAME of a "
            "model on the Hugging Face hub, or a store URL, that this machine reaches with the credentials in its environment"
        ) from error
    return shape_of(config, path)


def _config_text(path: str, revision: str | None) -> str:
    if path.startswith("toy://"):
        from opd.data.toy import model_folder

        path = model_folder(path)
    if is_store_url(path):
        return open_store(path).get("config.json").decode()
    if "://" in path:
        with open_url(f"{path.rstrip('/')}/config.json", "rt") as file:
            text: str = file.read()
        return text
    folder = Path(path)
    if not folder.is_dir():
        try:
            from huggingface_hub import hf_hub_download
            from huggingface_hub.errors import HFValidationError
        except ImportError as error:
            raise FileNotFoundError(
                "there is no such folder, and the hub needs huggingface_hub, which `make setup` installs"
            ) from error

        try:
            return Path(hf_hub_download(path, "config.json", revision=revision)).read_text()
        except HFValidationError:
            raise FileNotFoundError("there is no such folder, and it is no Hugging Face id") from None
    return (folder / "config.json").read_text()
