"""Tokens a second of the CPU rollout engine on the toy student: `python -m tests.benchmarks.rollout_cpu [--slots N]`."""

import argparse
import random
import time
from importlib.resources import files

import torch
from transformers import AutoConfig

from opd.rollout.cpu.config import EngineConfig
from opd.rollout.cpu.engine import RolloutEngine
from opd.rollout.cpu.model import build_model

LOADS = [(1, 12, 5), (128, 12, 5), (512, 12, 5), (64, 250, 250), (8, 900, 100)]
"""(requests, prompt tokens, answer tokens)."""


def run_load(engine: RolloutEngine, num_requests: int, num_prompt_tokens: int, num_answer_tokens: int) -> float:
    """Answer a load of random prompts that arrive at once; returns seconds."""
    rng = random.Random(0)
    prompts = [[rng.randrange(engine.config.vocab_size) for _ in range(num_prompt_tokens)] for _ in range(num_requests)]
    start = time.perf_counter()
    for index, prompt in enumerate(prompts):
        params = {"max_tokens": num_answer_tokens, "ignore_eos": True, "seed": index}
        engine.submit(prompt, params, str(index))
    while engine.num_unfinished:
        engine.step()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=EngineConfig.num_slots)
    args = parser.parse_args()
    torch.set_num_threads(1)  # as the server does
    folder = str(files("opd.data.toy") / "assets" / "student")
    hf_config = AutoConfig.from_pretrained(folder)
    config = EngineConfig(
        vocab_size=hf_config.vocab_size,
        max_model_len=hf_config.max_position_embeddings,
        prompt_length=512,
        response_length=512,
        num_slots=args.slots,
    )
    engine = RolloutEngine(build_model(hf_config, folder), config)
    run_load(engine, 8, 12, 2)  # first touches of every kernel
    print(f"slots {args.slots}\n{'requests':>8} {'prompt':>6} {'answer':>6} {'seconds':>8} {'tokens/s':>8}")
    for load in LOADS:
        seconds = min(run_load(engine, *load) for _ in range(3))
        print(f"{load[0]:>8} {load[1]:>6} {load[2]:>6} {seconds:>8.3f} {load[0] * load[2] / seconds:>8.0f}")


if __name__ == "__main__":
    main()
