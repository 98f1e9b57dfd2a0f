"""Random Qwen3 models that share one tokenizer of Qwen3's size: what the smoke run distils, made in seconds, no network."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.toy_models.tokenizer import build_tokenizer
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

NUM_VOCAB = 151_936
HEAD_DIM, NUM_HEADS, NUM_KV_HEADS = 128, 16, 8


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that differ between student and teacher; the heads are Qwen3-1.7B's."""

    num_layers: int
    hidden_size: int
    seed: int


STUDENT = Shape(num_layers=8, hidden_size=1024, seed=0)
TEACHER = Shape(num_layers=28, hidden_size=2048, seed=1)
SECOND = Shape(num_layers=14, hidden_size=1536, seed=2)
MODELS = {"student": STUDENT, "teacher": TEACHER, "second": SECOND}


def widened_tokenizer(num_entries: int = NUM_VOCAB) -> PreTrainedTokenizerFast:
    """The toy tokenizer with entries that no text holds, up to `num_entries`.

    vLLM masks ids beyond the tokenizer and the actor does not. A row of the head without a token would make the two
    disagree about every probability. Newline and space are in it once more as a byte-level tokenizer names them:
    transformers reads every Qwen2 vocabulary as byte-level.
    """
    small = build_tokenizer()
    tree = json.loads(small.backend_tokenizer.to_str())
    more = [*"\u010a\u0120", *(f"<unused_{i}>" for i in range(len(small) + 2, num_entries))]
    tree["model"]["vocab"].update({entry: len(small) + i for i, entry in enumerate(more)})
    wide = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(tree)),
        eos_token=small.eos_token,
        pad_token=small.pad_token,
        unk_token=small.unk_token,
        padding_side="left",
        model_max_length=small.model_max_length,
        clean_up_tokenization_spaces=False,
    )
    wide.chat_template = small.chat_template
    if len(wide) != num_entries:
        raise ValueError(f"the widened tokenizer has {len(wide)} entries, wanted {num_entries}")
    return wide


def save_model(folder: Path, shape: Shape, tokenizer: PreTrainedTokenizerFast, device: str) -> str:
    """A random bf16 model and its tokenizer in `folder`; returns a line that describes it."""
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = Qwen3Config(
        vocab_size=NUM_VOCAB,
        hidden_size=shape.hidden_size,
        intermediate_size=3 * shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        **special,
    )
    torch.manual_seed(shape.seed)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config.update(**special)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    backbone = sum(p.numel() for p in model.model.layers.parameters())
    return (
        f"{folder.name}: {backbone / 1e6:.0f}M in {shape.num_layers} layers of width {shape.hidden_size}, untied heads"
    )


def make_assets(folder: Path, device: str = "cuda") -> None:
    """Every model of `MODELS` in a folder of its name; one that is complete is left as it is."""
    tokenizer = widened_tokenizer()
    for name, shape in MODELS.items():
        done = folder / f"{name}.done"
        if not done.exists():
            print(save_model(folder / name, shape, tokenizer, device), flush=True)
            done.touch()


if __name__ == "__main__":
    make_assets(Path(sys.argv[1]))
