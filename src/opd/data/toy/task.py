"""The addition task: its problems, their hash split and their rows in verl's parquet columns (torch-free)."""

import hashlib
import os
import random
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

DATA_SOURCE = "toy_add"
NUM_OPERANDS = 100
"""Operands are 0 ... NUM_OPERANDS - 1."""
HELDOUT_FRACTION = 0.05
VALIDATION_FRACTION = 0.05
SPLIT_SALT = "opd-toy-add-v1"
"""Fixed: another salt is another split, and the committed models' held-out accuracy would be a lie."""

TRAIN_FILE = "train.parquet"
HELDOUT_FILE = "heldout.parquet"

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct([("split", pa.string()), ("index", pa.int64()), ("a", pa.int64()), ("b", pa.int64())]),
        ),
    ]
)


class Problem(NamedTuple):
    """One ordered pair of operands: `a + b = ?`."""

    a: int
    b: int

    @property
    def pair_index(self) -> int:
        """The problem's number among all ordered pairs: the same whatever file, order or seed it comes in."""
        return self.a * NUM_OPERANDS + self.b

    @property
    def question(self) -> str:
        """The user message: both operands with two digits, as in `07+34=`."""
        return f"{self.a:02d}+{self.b:02d}="

    @property
    def answer(self) -> str:
        """The whole response of a correct model: the sum with three digits, as in `041`."""
        return f"{self.a + self.b:03d}"

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation to answer: one user turn."""
        return [{"role": "user", "content": self.question}]


class Splits(NamedTuple):
    """All problems in the order of their index; `validation` is a slice *of* `train`."""

    train: list[Problem]
    heldout: list[Problem]
    validation: list[Problem]


def all_problems() -> list[Problem]:
    """Every ordered pair, in the order of its index."""
    return [Problem(a, b) for a in range(NUM_OPERANDS) for b in range(NUM_OPERANDS)]


def hash_fraction(problem: Problem) -> float:
    """A number in [0, 1) that depends on the *unordered* pair only, so that a+b and b+a never part."""
    low, high = sorted(problem)
    digest = hashlib.sha256(f"{SPLIT_SALT}:{low}:{high}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


def split_problems() -> Splits:
    """The fixed split of all problems.

    Held-out problems appear in no training data at all. `validation` is the slice of the training split on which a
    training of ours may look (when to stop): it is left out of that training, yet it is an honest training prompt
    for the distillation that comes after.
    """
    problems = all_problems()
    fractions = [hash_fraction(problem) for problem in problems]
    validation_end = HELDOUT_FRACTION + VALIDATION_FRACTION
    splits = Splits(
        train=[p for p, f in zip(problems, fractions, strict=True) if f >= HELDOUT_FRACTION],
        heldout=[p for p, f in zip(problems, fractions, strict=True) if f < HELDOUT_FRACTION],
        validation=[p for p, f in zip(problems, fractions, strict=True) if HELDOUT_FRACTION <= f < validation_end],
    )
    assert_disjoint(splits.train, splits.heldout)
    return splits


def assert_disjoint(train: Iterable[Problem], heldout: Iterable[Problem]) -> None:
    """Raise ValueError, with an example, if a held-out pair is trained on in either order of its operands."""
    held = {tuple(sorted(problem)): problem for problem in heldout}
    leaks = [(problem, held[key]) for problem in train if (key := tuple(sorted(problem))) in held]
    if leaks:
        trained, kept = leaks[0]
        raise ValueError(
            f"{len(leaks)} training problem(s) ask for a held-out sum, for example {trained.question!r} in training and "
            f"{kept.question!r} held out: a+b and b+a belong to the same side. Take both sides from split_problems()."
        )


def is_correct(response: str, ground_truth: str) -> bool:
    """Whether the response is the answer and nothing else (an exact match: no box, no padding, no further words)."""
    return response == ground_truth


def make_row(problem: Problem, split: str) -> dict[str, Any]:
    """One row in verl's columns; `extra_info.index` is `pair_index`, not its position in the file."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": problem.messages,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {"split": split, "index": problem.pair_index, "a": problem.a, "b": problem.b},
    }


def problem_of(row: dict[str, Any]) -> Problem:
    """The problem that a row asks, read from its prompt (what a model sees), not from its annotations."""
    question = row["prompt"][-1]["content"]
    a, _, b = question.removesuffix("=").partition("+")
    return Problem(int(a), int(b))


def choose(problems: Sequence[Problem], num: int | None, seed: int, name: str) -> list[Problem]:
    """`num` of the problems (None: all) in an order drawn from the seed; ValueError if there are not as many."""
    if num is not None and not 1 <= num <= len(problems):
        raise ValueError(
            f"{name} = {num}: must be between 1 and {len(problems)}, the problems of that split; choose fewer"
        )
    return random.Random(seed).sample(list(problems), len(problems) if num is None else num)


def write_parquet(
    out_dir: str | os.PathLike[str], *, seed: int, num_train: int | None = None, num_heldout: int | None = None
) -> tuple[Path, Path]:
    """Write `train.parquet` and `heldout.parquet`, each atomically, and return their paths.

    The seed decides the order of the training rows and which of them are there if `num_train` is less than all. The
    held-out rows do not depend on it: two seeds are judged on the same problems.
    """
    splits = split_problems()
    train = choose(splits.train, num_train, seed, "num_train")
    heldout = choose(splits.heldout, num_heldout, 0, "num_heldout")
    assert_disjoint(train, heldout)
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    paths = out / TRAIN_FILE, out / HELDOUT_FILE
    for path, problems, split in zip(paths, (train, heldout), ("train", "heldout"), strict=True):
        _write_atomically([make_row(problem, split) for problem in problems], path)
    return paths


def _write_atomically(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows beside `path`, then rename: a reader sees the old file or the new one, never half of it."""
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), partial)
        os.chmod(partial, 0o644)  # mkstemp's 0600 would hide the data from the other users of a shared volume
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)
