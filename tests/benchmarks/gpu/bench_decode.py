"""A decoding step of vLLM on one GPU by what a rollout's requests ask for: a table and a JSON file (part of `make bench-step`).

The student of the benchmark of the whole update (Qwen3-1.7B's shape, a tokenizer of Qwen3's size), vLLM's asynchronous engine
with the settings that verl's server gives it, answers of one length. A step's time is the difference of two runs that
differ in length alone, over the tokens between them, so that prefill and the start of a run are not in it. `--engine
distributed_executor_backend=mp kv_cache_dtype=fp8` and `--prompt-tokens 660` measure another engine, or requests as the schedule `carry`
has them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.gpu.facts import machine, write_record

SHORT, LONG = 32, 256
ROUNDS = 3
# What a request asks for beyond its tokens, and how its answer comes back: as verl's server takes it, whole after every
# token, or once at the end (FINAL_ONLY) and without its text.
VARIANTS: dict[str, Mapping[str, Any]] = {
    "log-probabilities and a seed": {"logprobs": 0, "seeded": True},
    "log-probabilities": {"logprobs": 0},
    "a seed": {"seeded": True},
    "neither": {},
    "neither, no text": {"detokenize": False},
    "neither, no text, one output": {"detokenize": False, "final_only": True},
}


def save_student(folder: Path) -> None:
    """Config and tokenizer; vLLM makes the weights itself."""
    from tests.benchmarks.gpu.worker_alone import QWEN3_1_7B
    from tests.gpu_smoke.assets import widened_tokenizer

    QWEN3_1_7B.config().save_pretrained(folder)
    widened_tokenizer().save_pretrained(folder)


def make_engine(folder: Path, rows: list[int], prompt_tokens: int, changes: Mapping[str, Any]) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = {
        "model": str(folder),
        "load_format": "dummy",
        "dtype": "bfloat16",
        "max_model_len": prompt_tokens + LONG,
        "max_num_seqs": max(rows),
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.6,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "distributed_executor_backend": "uni",  # as the trainer has it on one GPU
        "seed": 1,
        "compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": [1, *rows]},
    }
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments | changes))


async def seconds(engine: Any, num_rows: int, prompt_tokens: int, num_tokens: int, options: Mapping[str, Any]) -> float:
    """From the first request to the end of the last answer."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    options = dict(options)
    is_seeded = options.pop("seeded", False)
    if options.pop("final_only", False):
        options["output_kind"] = RequestOutputKind.FINAL_ONLY

    async def answer(row: int) -> None:
        params = SamplingParams(
            temperature=1.0, max_tokens=num_tokens, ignore_eos=True, seed=row if is_seeded else None, **options
        )
        prompt = {"prompt_token_ids": [(row * prompt_tokens + i) % 150_000 for i in range(prompt_tokens)]}
        last = None
        async for output in engine.generate(prompt, params, request_id=f"{time.monotonic_ns()}-{row}"):
            last = output
        assert last is not None
        assert len(last.outputs[0].token_ids) == num_tokens

    started = time.perf_counter()
    await asyncio.gather(*(answer(row) for row in range(num_rows)))
    return time.perf_counter() - started


async def measure(engine: Any, rows: list[int], prompt_tokens: int) -> list[dict[str, Any]]:
    """Variants take turns; the median of the rounds."""
    found = []
    for num_rows in rows:
        steps: dict[str, list[float]] = {name: [] for name in VARIANTS}
        await seconds(engine, num_rows, prompt_tokens, SHORT, {})
        for _ in range(ROUNDS):
            for name, options in VARIANTS.items():
                short, long = [
                    await seconds(engine, num_rows, prompt_tokens, tokens, options) for tokens in (SHORT, LONG)
                ]
                steps[name].append(1e3 * (long - short) / (LONG - SHORT))
        least = statistics.median(steps["neither"])
        for name, values in steps.items():
            ms = statistics.median(values)
            found.append({"rows": num_rows, "variant": name, "ms": ms, "of_neither": ms / least})
            print(f"{num_rows:5d} rows  {name:32s} {ms:7.2f} ms a step  {ms / least:5.2f}x", flush=True)
    return found


async def run(rows: list[int], prompt_tokens: int, changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        save_student(Path(folder))
        engine = make_engine(Path(folder), rows, prompt_tokens, changes)
        try:
            return await measure(engine, rows, prompt_tokens)
        finally:
            engine.shutdown()


def _change(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{text}: KEY=VALUE, such as kv_cache_dtype=fp8")
    return key, yaml.safe_load(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 128, 256, 512])
    parser.add_argument("--prompt-tokens", type=int, default=128, help="before each request's answer")
    parser.add_argument(
        "--engine", type=_change, nargs="+", default=[], metavar="KEY=VALUE", help="arguments of vLLM's engine, as YAML"
    )
    parser.add_argument("--json", type=Path, default=Path("build/bench-step/decode.json"))
    arguments = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("bench-decode: no CUDA device here; it measures vLLM on one")
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    facts = machine("torch", "triton", "transformers", "vllm")
    print(facts, flush=True)
    prompt_tokens, changes = arguments.prompt_tokens, dict(arguments.engine)
    rows = asyncio.run(run(arguments.rows, prompt_tokens, changes))
    write_record(
        arguments.json, {"environment": facts, "prompt_tokens": prompt_tokens, "engine": changes, "rows": rows}
    )


if __name__ == "__main__":
    main()
