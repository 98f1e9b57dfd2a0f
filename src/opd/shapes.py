"""Sizes of a model by its config.json alone: parameters, layers, and bytes of activations a token."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from opd.data.toy import model_folder
from opd.errors import StoreUnavailable
from opd.experiment.defaults import context_of
from opd.store.remote import open_store

MAX_REASON_CHARS = 400


class Unplannable(ValueError):
    """A model whose config cannot be read, or does not say its sizes in the way of Llama and its relatives."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder with grouped-query attention and gated feed-forward layers (dense, or a mixture of experts)."""

    vocab_rows: int  # of embedding and head, padding included
    hidden: int
    layers: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    tied: bool  # embedding and head are one tensor
    attention_bias: bool = False
    qk_norm: bool = False
    num_experts: int = 0  # of a layer; 0 means dense layers
    experts_per_token: int = 0
    context: int | None = None  # tokens of the longest row; None means that its config does not say

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def attended_width(self) -> int:
        """Return the entries a token of queries, keys, values and the attention's output."""
        return 2 * (self.query_width + self.key_width)

    @property
    def visited_width(self) -> int:
        """Return the entries a token of one branch of the feed-forward."""
        return max(1, self.experts_per_token) * self.intermediate

    @property
    def head_params(self) -> int:
        """Return the entries of the output head, which the embedding has too."""
        return self.vocab_rows * self.hidden

    @property
    def layer_params(self) -> int:
        """Return the entries of one layer: q, k, v, o, the feed-forward's three matrices (and a router), two norms."""
        attention = self.hidden * self.attended_width
        if self.attention_bias:
            attention += self.query_width + 2 * self.key_width
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        router = self.num_experts * self.hidden
        return attention + norms + router + max(1, self.num_experts) * 3 * self.hidden * self.intermediate

    @property
    def num_params(self) -> int:
        return self.layers * self.layer_params + (1 if self.tied else 2) * self.head_params + self.hidden

    @property
    def visited_params(self) -> int:
        """Return the entries of one layer that a token visits: of a mixture of experts not all."""
        unvisited = max(0, self.num_experts - self.experts_per_token)
        return self.layer_params - unvisited * 3 * self.hidden * self.intermediate

    def adapter_params(self, rank: int, modules: Collection[str]) -> int:
        """Return the entries of LoRA adapters on the linear layers of these names: rank * (in + out) each.

        Experts and their router are no linear layers in transformers, and get none.
        """
        hidden, query, key = self.hidden, self.query_width, self.key_width
        widths = {"q_proj": hidden + query, "k_proj": hidden + key, "v_proj": hidden + key, "o_proj": query + hidden}
        if not self.num_experts:
            widths |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), hidden + self.intermediate)
        named = (width for name, width in widths.items() if "all-linear" in modules or name in modules)
        return self.layers * rank * sum(named)

    def saved_bytes(self, width: int, *, frozen: bool = False) -> int:
        """Return the bytes a token and layer that autograd keeps for the backward, in `width`-byte precision.

        An RMS norm keeps its input in fp32, and for its weight's gradient its result. Products keep the results of the norms on
        the hidden states, the attention its four tensors, the feed-forward gate, activation, other branch and their product.

        Args:
            frozen: adapters alone are trained, on all linear layers, which keep their inputs all the same.
        """
        norms = 2 * self.hidden + (self.query_width + self.key_width if self.qk_norm else 0)
        kept = 2 * self.hidden + self.attended_width + 4 * self.visited_width
        return norms * (4 if frozen else 4 + width) + width * kept

    def compiled_bytes(self, width: int) -> int:
        """Return an estimate of the bytes a token and layer that a compiled layer keeps where it recomputes least.

        Torch's partitioner keeps inputs and results of the norms, the attention's four tensors, and three of the feed-forward.
        It keeps queries and keys once more before norms of their own.
        """
        before_norms = self.query_width + self.key_width if self.qk_norm else 0
        return width * (4 * self.hidden + self.attended_width + before_norms + 3 * self.visited_width)

    def transient_bytes(self, width: int) -> int:
        """Return an estimate of the bytes a token that a forward without gradient has at once in its widest layer."""
        stream = self.hidden * (2 * width + 4)  # the residual stream, and a norm's input in fp32
        attention = width * self.attended_width + 4 * self.query_width
        return stream + max(attention, 3 * width * self.visited_width)


def shape_of(config: Mapping[str, Any], name: str) -> ModelShape:
    """Return the sizes that a Hugging Face config names, or raise Unplannable for a missing size."""
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
        known = "the memory plan knows decoders whose config names their sizes as Llama's and Qwen's do"
        raise Unplannable(f"{name}: its config.json has no {missing}; {known}") from None


def read_shape(path: str, *, revision: str | None = None) -> ModelShape:
    """Return the sizes of a model by its path; see `read_config`."""
    return shape_of(read_config(path, revision=revision), path)


def read_config(path: str, *, revision: str | None = None) -> dict[str, Any]:
    """Return the config.json of a model in a folder, in a store or on the Hugging Face hub; nothing else is read.

    Raises:
        Unplannable: there is no config. StoreUnavailable: the store cannot be reached.
    """
    try:
        place = model_folder(path)
        if "://" in place or Path(place).is_dir():
            text = open_store(place).get("config.json")
        else:
            from huggingface_hub import hf_hub_download  # comes with `make setup`, not with the tool

            text = Path(hf_hub_download(place, "config.json", revision=revision)).read_bytes()
        config: dict[str, Any] = json.loads(text)
    except StoreUnavailable:
        raise
    except Exception as error:  # each library that reads the store or the hub has classes of its own
        what = shorten(str(error), MAX_REASON_CHARS)
        raise Unplannable(
            f"{path}: its config.json cannot be read ({type(error).__name__}: {what}). Name a folder that has one, OWNER/NAME of a "
            "model on the Hugging Face hub, or a store URL. This machine must reach it with the credentials in its environment"
        ) from error
    return config
