"""A study that is a module of its own: its command line, and a line of results for each run that ended."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A cell's run of one seed: held-out shares of right answers, sampled at temperature 1, before and after it."""

    cell: str
    seed: int
    before: float
    after: float

    @property
    def gain(self) -> float:
        return self.after - self.before


def main_of(
    study: ModuleType,
    argv: Sequence[str] | None,
    *,
    cells: Iterable[str],
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
        for cell in cells:
            if (cell, seed) in {(one.cell, one.seed) for one in _read(args.out, study.Result, code)}:
                continue
            line = asdict(run(cell, seed)) | {"code": code}
            with args.out.open("a") as out:
                out.write(json.dumps(line) + "\n")
            print(line, flush=True)
    results = [one for one in _read(args.out, study.Result, code) if one.seed in args.seeds]
    written = f"# {title}\n\nWritten by `{command}`.\n\n{study.table(results)}"
    (args.table or args.out.with_name(f"{name.upper()}.md")).write_text(written)
    return 0


def _read(path: Path, result: type, code: str) -> list[Any]:
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [result(**{key: line[key] for key in line if key != "code"}) for line in lines if line["code"] == code]
