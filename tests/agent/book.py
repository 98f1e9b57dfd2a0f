"""A phone book as an environment: one tool, one question, one reward."""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from opd.agent import Arguments, BadArguments, Environment, Tool

BOOK = {"Ada": "2806", "Alan": "5391", "Grace": "7745"}


class Name(Arguments):
    """Arguments of `look_up`."""

    name: str = Field(max_length=40, description="First name.")


def _open_database(folder: str) -> dict[str, str]:
    return json.loads((Path(folder) / "book.json").read_text())


def _look_up(book: Mapping[str, str], wanted: Name) -> dict[str, str]:
    if wanted.name not in book:
        raise BadArguments(f"name = {wanted.name!r}: is not in the book, which has {', '.join(book)}")
    return {"number": book[wanted.name]}


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **options) -> float:
    return float(solution_str.rstrip(" .\n").endswith(ground_truth))


LOOK_UP = Tool("look_up", "Look up a person's number.", Name, _look_up)
ENVIRONMENT = Environment(tools={"look_up": LOOK_UP}, open_database=_open_database, reward=f"{__name__}:compute_score")


def write(folder: Path) -> None:
    """Write the phone book."""
    (folder / "book.json").write_text(json.dumps(BOOK))
