"""A run's LoRA adapters as a folder of their own in peft's format, and the plain model that they make of their base."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch


def save(checkpoint: Path, out: Path) -> None:
    """Write the adapters of a LoRA run's checkpoint in bf16, without the frozen model."""
    from safetensors.torch import save_file

    from opd.convert.merger import ShardMerger
    from opd.convert.source import CONFIG_FILE, HUGGINGFACE, LORA_FILE

    actor = checkpoint / "actor"
    world_size = json.loads((checkpoint / CONFIG_FILE).read_text())["world_size"]
    merger = ShardMerger(
        actor, huggingface_dir=checkpoint / HUGGINGFACE, world_size=world_size, trust_remote_code=False
    )
    tensors = {
        name.replace(".default.", "."): value.to(torch.bfloat16).contiguous()
        for name, value in merger.adapter_tensors().items()
    }
    scale = json.loads((actor / LORA_FILE).read_text())
    layers = sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in tensors})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": scale["r"],
        "lora_alpha": scale["lora_alpha"],
        "target_modules": layers,
    }
    out.mkdir(parents=True)
    save_file(tensors, out / "adapter_model.safetensors")
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def merge(base: Path, adapter: Path, out: Path) -> None:
    """Write the plain model of a base model and an adapter folder, in bf16 with the base's tokenizer."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    # peft adds the product to the weights in the model's dtype, here fp32.
    merged: Any = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    unfinished = out.with_name(f"{out.name}.part")
    merged.to(torch.bfloat16).save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(base).save_pretrained(unfinished)
    unfinished.rename(out)


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m opd.quickstart.adapter", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    saving = commands.add_parser("save", help="write the adapters of a checkpoint (.../global_step_N)")
    saving.add_argument("checkpoint", type=Path)
    merging = commands.add_parser("merge", help="write the plain model of a base model and its adapters")
    merging.add_argument("base", type=Path)
    merging.add_argument("adapter", type=Path)
    for command in (saving, merging):
        command.add_argument("out", type=Path, help="the new folder")
    arguments = parser.parse_args(argv)
    if arguments.command == "save":
        save(arguments.checkpoint, arguments.out)
    else:
        merge(arguments.base, arguments.adapter, arguments.out)


if __name__ == "__main__":
    main()
