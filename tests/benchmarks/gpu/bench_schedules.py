"""`make bench-schedules`: `rollout.schedule: carry` against strict, Qwen3-8B's shape into 1.7B's, at log-normal lengths.

Runs of `bench_step`, each alone on a GPU, as many at a time as the host has GPUs; carry twice, over at least three times the rounds that
the longest response takes. Strict is measured as specs have it and with vLLM's worker in a process of its own, as carry has it.
The JSON file is written after every run, and a later call makes those that it lacks or that were cut short: `--folder` keeps both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu.bench_host import PHASE, RESULTS, STEP, Run, arguments_of, play, prepared, wanting
from tests.gpu.facts import write_record

from opd.rollout.carry import ROUNDS_OF_LONGEST

IN_FLIGHT = 384
FULL_LENGTHS = 3
CARRY_STEPS = 56
"""With `IN_FLIGHT` an update takes 0.9 rounds, and the longest response `ROUNDS_OF_LONGEST`."""
NO_LOGPROBS = "rollout.logprobs_every=1000"
STRICT, STRICT_MP = "strict", "strict, mp"
_MP = "rollout.engine_kwargs.distributed_executor_backend=mp"
_CARRY = (
    f"rollout.max_num_seqs={IN_FLIGHT}", "rollout.keep_prefixes=true", "rollout.free_cache_engine=false",
    "rollout.gpu_memory_utilization=0.35",
)  # fmt: skip
COLUMNS = ("rollout", "teacher", "student", "weight sync", "step")
"""Parts of a step, as `bench_step` calls them: medians, in seconds."""


def _run(name: str, sets: tuple[str, ...], *more: str) -> Run:
    words = [word for item in (NO_LOGPROBS, *sets) for word in ("--set", item)]
    return Run(name=name, num_gpus=1, program=STEP, arguments=("--phases", PHASE, *more, *words))


def runs() -> list[Run]:
    """The longest first, so that the GPUs end together."""
    carry = ("--steps", str(CARRY_STEPS), "--schedule", "carry", "--in-flight", str(IN_FLIGHT))
    strict = ("--steps", "12")
    return [
        _run("carry", _CARRY, *carry),
        _run("carry, again", _CARRY, *carry),
        _run(STRICT, (), *strict),
        _run(STRICT_MP, (_MP,), *strict),
    ]


def found(run: Run, folder: Path) -> dict[str, Any] | None:
    """What the run has written; None before its second step."""
    path = run.folder(folder) / RESULTS
    if not path.exists():
        return None
    [told] = json.loads(path.read_text())["runs"].values()
    if PHASE not in told["phases"]:
        return None
    return {"arguments": " ".join(run.arguments), **told}


def report(known: Mapping[str, Any]) -> Iterator[str]:
    """A table for people: a line for each run, its speed beside strict's, over how many full lengths."""
    measured = {name: run["phases"][PHASE]["without"] for name, run in known.items()}
    speed = {name: of["trained_tokens_per_s_in_all"] for name, of in measured.items()}
    heads = ("", "steps", *COLUMNS, "trained tokens/s", f"of {STRICT}", f"of {STRICT_MP}", "GPU busy", "full lengths")
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for name, of in measured.items():
        parts = [f"{of[part]:.2f}" if part in of else "" for part in COLUMNS]
        ratios = [
            f"{speed[name] / speed[other]:.2f}" if other in speed and other != name else ""
            for other in (STRICT, STRICT_MP)
        ]
        cells = (name, f"{of['steps']:.0f}", *parts, f"{speed[name]:,.0f}", *ratios, f"{of['gpu_busy']:.0%}")
        yield f"| {' | '.join((*cells, _full_lengths(of)))} |"


def _full_lengths(of: Mapping[str, float]) -> str:
    """How many times the longest response fits into the rounds of the steps; empty for strict, whose every step waits for it."""
    rounds = of.get("rollout/rounds")
    if rounds is None:
        return ""
    lengths = rounds * of["steps"] / ROUNDS_OF_LONGEST
    return f"{lengths:.2f}{'' if lengths >= FULL_LENGTHS else f' (fewer than {FULL_LENGTHS})'}"


def main() -> None:
    arguments = arguments_of(__doc__, name="bench-schedules", least_gpus=1, limit_s=1200.0)
    folder, known = prepared(arguments)
    wanted = wanting(runs(), known["runs"], arguments.only)
    for run, code in play(wanted, folder, arguments.limit_s, arguments.gpus):
        seen = found(run, folder)
        print(f"{run.name}: exit {code}, {seen['steps'] if seen else 0} steps", flush=True)
        if seen:
            known["runs"][run.name] = seen | {"exit": code}
            write_record(arguments.json, known)
    print(*report(known["runs"]), sep="\n")


if __name__ == "__main__":
    main()
