"""A phone book as an environment: one tool, one question, one reward. It trains nothing; copy it for a world of your own.

`python -m opd.agent.toy DIR` writes the database and `DIR/{train,val}.parquet`; `agent.toolset: toy` offers the tool.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from opd.agent.environments import Environment
from opd.agent.tools import Arguments, BadArguments, Tool
from opd.data.rows import Row, write_files

_NAMES = ("Ada", "Alan", "Edsger", "Grace", "Kurt")
_BOOK = "book.json"


class Name(Arguments):
    """Arguments of `look_up`."""

    name: str = Field(max_length=40, description="First name.")


def open_database(folder: str) -> dict[str, str]:
    """Read the phone book."""
    book: dict[str, str] = json.loads((Path(folder) / _BOOK).read_text())
    return book


def _look_up(book: Mapping[str, str], wanted: Name) -> dict[str, str]:
    if wanted.name not in book:
        raise BadArguments(f"name = {wanted.name!r}: is not in the book, which has {', '.join(book)}")
    return {"number": book[wanted.name]}


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **options: Any
) -> float:
    """Score 1 for an answer that ends with the number, else 0."""
    return float(solution_str.rstrip(" .\n").endswith(ground_truth))


LOOK_UP = Tool("look_up", "Look up a person's number.", Name, _look_up)
ENVIRONMENT = Environment(
    tools={LOOK_UP.name: LOOK_UP},
    open_database=open_database,
    reward="opd.agent.toy:compute_score",
    prepare="python -m opd.agent.toy DIR",
)


def write(folder: Path, *, seed: int = 0) -> None:
    """Write the phone book of a seed and a question for each person, whole or not at all."""
    rng = random.Random(seed)
    book = {name: f"{rng.randrange(10_000):04d}" for name in _NAMES}
    tables = {
        folder / f"{split}.parquet": [_row(split, index, *entry) for index, entry in enumerate(book.items())]
        for split in ("train", "val")
    }
    write_files(tables, {folder / _BOOK: json.dumps(book)})


def _row(split: str, index: int, name: str, number: str) -> Row:
    return {
        "data_source": "toy_book",
        "prompt": [{"role": "user", "content": f"What is {name}'s number?"}],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": number},
        "extra_info": {"split": split, "index": index, "data_source": "toy_book", "problem_id": name},
    }


if __name__ == "__main__":
    write(Path(sys.argv[1]))
