"""The toy task with steps and levels: chains of additions, worked out aloud, in the toy models' characters.

`48+7+5______=` is answered by one line a step and the result: `so 48+7=55`, `then 55+5=60`, `#60`. Level k has k steps. What
matters of an answer are the digits behind each `=`, above all the tens digit where something is carried; the words that begin a
line are free, and everything else is copied.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

LEVELS = (1, 2, 3, 4, 5)
FIRST_OPERANDS = range(10, 50)
"""Two digits; five digits more keep every sum below 100."""
WORDS = ("so ", "then ", "now ")
TEACHER_WORD_WEIGHTS = (0.6, 0.2, 0.2)
"""The teacher's style. The student has none, so that there is a divergence to learn that no score rewards."""
STUDENT_WORD_WEIGHTS = (1.0, 1.0, 1.0)
ABSENT = "_"
"""Fills the question up: all prompts have one length."""
MAX_RESPONSE_TOKENS = max(LEVELS) * len("then 48+7=55\n") + len("#55") + 1
HELDOUT_FRACTION = 0.2
SPLIT_SALT = "opd-chains"


@dataclass(frozen=True)
class Chain:
    """One problem: a first operand of two digits and one to five digits to add."""

    start: int
    addends: tuple[int, ...]

    @property
    def level(self) -> int:
        return len(self.addends)

    @property
    def question(self) -> str:
        text = str(self.start) + "".join(f"+{digit}" for digit in self.addends)
        return text.ljust(2 + 2 * max(LEVELS), ABSENT) + "="

    @property
    def answer(self) -> int:
        return self.start + sum(self.addends)

    @property
    def is_heldout(self) -> bool:
        """By a hash of the question, so that no file, order or seed has a say."""
        digest = hashlib.sha256(f"{SPLIT_SALT}:{self.question}".encode()).digest()
        return int.from_bytes(digest[:6]) / 2**48 < HELDOUT_FRACTION

    def worked(self, rng: random.Random, word_weights: Sequence[float], *, drop_carries: bool = False) -> str:
        """An answer without its end of turn; who drops carries goes on with the wrong sum, as a pupil would."""
        total, lines = self.start, []
        for digit in self.addends:
            carried = 0 if drop_carries else (total % 10 + digit) // 10
            after = (total // 10 + carried) * 10 + (total + digit) % 10
            lines.append(f"{rng.choices(WORDS, word_weights)[0]}{total}+{digit}={after}\n")
            total = after
        return "".join(lines) + f"#{total}"

    def is_right(self, response: str) -> bool:
        """Whether what stands behind the last `#`, to the end, is the sum."""
        return response.rpartition("#")[2] == str(self.answer) and "#" in response


def draw(num: int, *, heldout: bool, seed: int) -> list[Chain]:
    """`num` problems of one side of the split, the levels in turn; a function of its arguments."""
    rng = random.Random(f"{seed}:{heldout}")
    out: list[Chain] = []
    while len(out) < num:
        level = LEVELS[len(out) % len(LEVELS)]
        chain = Chain(rng.choice(FIRST_OPERANDS), tuple(rng.randrange(10) for _ in range(level)))
        if chain.is_heldout == heldout:
            out.append(chain)
    return out
