"""The plain model of a base model and peft's adapters, as a program of its own: `BASE ADAPTERS OUT`, three folders."""

import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


def merge(base: Path, adapters: Path, out: Path) -> None:
    """Write the plain model in bf16, with the base's tokenizer."""
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    # peft adds the product to the weights in the model's dtype, here fp32.
    merged: Any = PeftModel.from_pretrained(model, str(adapters)).merge_and_unload()
    unfinished = out.with_name(f"{out.name}.part")
    merged.to(torch.bfloat16).save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(base).save_pretrained(unfinished)
    unfinished.rename(out)


if __name__ == "__main__":
    merge(*map(Path, sys.argv[1:]))
