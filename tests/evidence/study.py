"""The harness of all studies: the command line, a line of results for each run that ended, and the loop of an optimizer."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

PRIMARY_FILE = Path(__file__).with_name("primary.yaml")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A cell's run of one seed: held-out shares of right answers, sampled at temperature 1, before and after it."""

    cell: str
    seed: int
    before: float
    after: float


def warmed_up(num_steps: int) -> Callable[[int], float]:
    """Return the factor of a rate that rises over so many steps."""
    return lambda step: min(1.0, (step + 1) / num_steps)


def fit(
    model: Module,
    loss_at: Callable[[int], Tensor | None],
    *,
    num_steps: int,
    rate: float,
    betas: tuple[float, float] = (0.9, 0.999),
    factor: Callable[[int], float] = lambda step: 1.0,
) -> None:
    """Train what of the model requires a gradient by AdamW, with gradients clipped to a norm of 1.

    Args:
        loss_at: the loss of a step from 0; None skips its update.
        factor: of the rate, by the number of updates made.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, betas=betas, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for step in range(num_steps):
        loss = loss_at(step)
        if loss is None:
            continue
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()


def main_of(
    study: ModuleType,
    argv: Sequence[str] | None,
    *,
    cells: Collection[str],
    run: Callable[[str, int], Any],
    title: str,
) -> int:
    """Train each cell on each seed, and write the table of all; what ran by this very module is not run again.

    So a study goes on where it ended, and processes can share its seeds.

    Args:
        study: has `SEEDS`, the dataclass `Result` with `cell` and `seed`, and `table` of results.
        argv: the words behind the command; None: the process's own.
        run: the result of a cell and a seed.
        title: of the table.
    """
    file = Path(str(study.__file__))
    name = file.stem
    command = f"python -m tests.evidence.{name}"
    parser = argparse.ArgumentParser(prog=command, description=study.__doc__)
    parser.add_argument(
        "--cells", nargs="+", default=list(cells), choices=list(cells), metavar="CELL", help="these alone"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(study.SEEDS))
    parser.add_argument(
        "--out", type=Path, default=Path(f"build/evidence/{name}.jsonl"), help="a line for each run that ended"
    )
    parser.add_argument("--table", type=Path, help=f"Markdown to write (default: {name.upper()}.md beside --out)")
    args = parser.parse_args(argv)
    # Results of another version of the module are another experiment's.
    code = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    torch.set_num_threads(1)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for cell in args.cells:
            if (cell, seed) in {(one.cell, one.seed) for one in _read(args.out, study.Result, code)}:
                continue
            line = asdict(run(cell, seed)) | {"code": code}
            with args.out.open("a") as out:
                out.write(json.dumps(line) + "\n")
            print(line, flush=True)
    results = [one for one in _read(args.out, study.Result, code) if one.seed in args.seeds and one.cell in args.cells]
    written = f"# {title}\n\nWritten by `{command}`.\n\n{study.table(results)}"
    (args.table or args.out.with_name(f"{name.upper()}.md")).write_text(written)
    return 0


def _read(path: Path, result: type, code: str) -> list[Any]:
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [result(**{key: line[key] for key in line if key != "code"}) for line in lines if line["code"] == code]
