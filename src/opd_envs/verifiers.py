"""Environments of the library `verifiers` (Prime Intellect) as an agent program: `agent.program: opd_envs.verifiers:program`.

`python -m opd_envs.verifiers ENVIRONMENT --out DIR` writes an environment's data set as rows; each row names the environment.
"""

import argparse
import asyncio
import json
import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from opd.data.rows import Row, write_files
from opd_envs.rows import agent_row

try:
    import verifiers as vf
    from openai import AsyncOpenAI
except ImportError as error:
    raise ImportError("this needs the library verifiers: uv sync --frozen --inexact --extra verifiers") from error

TASK = "verifiers"  # field of `extra_info`: JSON text of the environment, its arguments and its own row
_LOCK = threading.Lock()


@lru_cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of every conversation: an environment's clients and locks belong to one loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="verifiers", daemon=True).start()
    return loop


@lru_cache
def load(name: str, arguments: str) -> Any:
    """Load an environment, once in a process, without the signal handlers that it sets."""
    with patch("verifiers.envs.environment.signal"):
        return vf.load_environment(name, **json.loads(arguments))


def program(base_url: str, api_key: str, model: str, row: Mapping[str, Any]) -> dict[str, float]:
    """Hold one conversation; return its reward as the score, with the rubric's metrics."""
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=None)
    with _LOCK:
        loop = _loop()
    playing = _play(client, model, **json.loads(row["extra_info"][TASK]))
    return asyncio.run_coroutine_threadsafe(playing, loop).result()


async def _play(client: AsyncOpenAI, model: str, name: str, arguments: str, example: Row) -> dict[str, float]:
    environment = load(name, arguments)
    async with client:
        state = await environment.rollout(example, client, model, {})
    if isinstance(state["error"], vf.InfraError):  # a sandbox failed, not the model
        raise state["error"]
    await environment.rubric.score_rollout(state)
    is_right = state["reward"] >= getattr(environment, "pass_threshold", 0.5)  # the library's own rule
    return {"acc": float(is_right), **state["metrics"], "score": state["reward"]}


def rows(name: str, arguments: str, split: str, examples: Iterable[Row]) -> list[Row]:
    """Return rows of an environment's data set."""
    made = []
    for index, example in enumerate(examples):
        prompt = example["prompt"]
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        task = json.dumps({"name": name, "arguments": arguments, "example": example | {"prompt": messages}})
        answer, number, facts = str(example.get("answer", "")), str(example["example_id"]), {TASK: task}
        made.append(agent_row(answer, messages, data_source=name, split=split, index=index, problem_id=number, **facts))
    return made


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m opd_envs.verifiers", description="Writes train and val.parquet.")
    parser.add_argument("name", help="environment: an installed package with load_environment")
    parser.add_argument("--arguments", default="{}", metavar="JSON", help="of load_environment")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    given = parser.parse_args()
    try:
        environment = load(given.name, given.arguments)
        sets = {"train": environment.get_dataset(), "val": environment.get_eval_dataset()}
    except (ValueError, RuntimeError) as error:
        parser.error(str(error))
    tables = {split: rows(given.name, given.arguments, split, examples) for split, examples in sets.items()}
    write_files({given.out / f"{split}.parquet": table for split, table in tables.items()}, {}, schema=None)
    print(f"{given.out}: {len(tables['train'])} train, {len(tables['val'])} val")


if __name__ == "__main__":
    main()
