"""`python -m tests.benchmarks.teachers`: what several teachers cost beyond the sum of their forward passes, in CPU seconds.

The real worker (one rank, gloo, no Ray) on the same rows, in turn with one teacher of all rows, and with four of which each has a quarter
of them. All teachers are of one size, so that the four together read as many tokens as the one does: what
the routed step takes more is what having four costs. CPU seconds of a process of one thread, since others share this machine's cores; of
`--repeats` rounds the median and the least, to which other work adds the least. `--json FILE` writes the numbers. Nothing is told of a GPU, where the swap of weights counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

PROMPT, RESPONSE, WIDTH, LAYERS, NUM_TEACHERS = 48, 80, 256, 8, 4
PHASES = ("timing/teacher_s", "timing/student_s")


def _cases(folder: Path, num_rows: int) -> dict[str, Any]:
    from tests.worker.models import VOCAB, save_model
    from tests.worker.workers import Case, row

    student = save_model(folder / "student", hidden=128, layers=2, rows=64, tied=False, seed=0)
    paths = {
        f"t{number}": save_model(folder / f"t{number}", hidden=WIDTH, layers=LAYERS, rows=64, tied=False, seed=number)
        for number in range(NUM_TEACHERS)
    }
    draw = random.Random(0)

    def rows(number_of: Any) -> list[dict[str, Any]]:
        ids = [[draw.randrange(3, VOCAB) for _ in range(PROMPT + RESPONSE)] for _ in range(num_rows)]
        return [row(of[:PROMPT], of[PROMPT:]) | {"teacher": number_of(number)} for number, of in enumerate(ids)]

    sets = [f"data.max_prompt_length={PROMPT}", f"data.max_response_length={RESPONSE}"]
    common: dict[str, Any] = {"student": student, "micro_batch": 8, "sets": sets}
    return {
        "one": Case(teacher=paths["t0"], rows=rows(lambda _: 0), **common),
        "routed": Case(teacher="", teachers=paths, rows=rows(lambda number: number % NUM_TEACHERS), **common),
    }


def _started(case: Any) -> Any:
    """The case's worker, and the rows that it is given each time."""
    from tests.worker.workers import config, cut_into_mini_batches, tensordict

    from opd.worker.opd_worker import OPDWorker

    worker = OPDWorker(config=config(case), role="actor_rollout_ref")
    worker.init_model()
    data = tensordict(case.rows)
    cut_into_mini_batches(data, len(case.rows))
    return worker, data


def _measured(worker: Any, data: Any) -> dict[str, float]:
    """CPU seconds of both phases of one step."""
    from verl.utils import tensordict_utils as tu

    with patch("time.perf_counter", time.process_time):
        metrics = tu.get(worker.update_opd(data.clone()), "metrics")
    return {phase: float(metrics[phase][0]) for phase in PHASES}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rows", type=int, default=32, help=f"of a step, a multiple of {8 * NUM_TEACHERS}")
    parser.add_argument("--only", nargs="+", default=["one", "routed"])
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    args = parser.parse_args(argv)
    from tests.ports import free_ports

    [port] = free_ports(1)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {
        "MASTER_PORT": str(port),
        "VERL_USE_EXTERNAL_MODULES": "opd.compat.cpu",
        "VERL_ENGINE_DEVICE": "cuda",
    }
    import torch
    import verl  # noqa: F401

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        started = {name: _started(case) for name, case in _cases(Path(folder), args.rows).items() if name in args.only}
        for of in started.values():
            _measured(*of)  # the first step also takes memory for the first time
        rounds = [{name: _measured(*of) for name, of in started.items()} for _ in range(args.repeats)]
    print("| | teacher phase, CPU s | least | beyond the passes | by the least | student phase, CPU s | least |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    of = {name: [[one[name][phase] for one in rounds] for phase in PHASES] for name in started}
    alone = of["one"][0]
    for name, (teacher, student) in of.items():
        beyond = [how(teacher) / how(alone) - 1 for how in (statistics.median, min)]
        print(
            f"| {name} | {statistics.median(teacher):.3f} | {min(teacher):.3f} | {beyond[0]:+.1%} | {beyond[1]:+.1%} "
            f"| {statistics.median(student):.3f} | {min(student):.3f} |"
        )
    if args.json:
        args.json.write_text(json.dumps(rounds, indent=1) + "\n")


if __name__ == "__main__":
    main()
