"""Update of uv.lock that changes only what was asked.

`python tools/lock.py [ARGUMENTS OF uv lock]`. Registries differ in the facts that they give about a file, such as its
size. A line that differs from the committed lock in a file's size alone stays as it was.
"""

import re
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).resolve().parents[1] / "uv.lock"


def without_size(line: str) -> str:
    """Return a line of the lock without the size of a file."""
    return re.sub(r", size = \d+", "", line)


def main() -> None:
    """Run uv and write back the lines that differ in a size alone."""
    before = {without_size(line): line for line in LOCK.read_text().splitlines(keepends=True)}
    subprocess.run(["uv", "lock", *sys.argv[1:]], cwd=LOCK.parent, check=True)
    after = LOCK.read_text().splitlines(keepends=True)
    LOCK.write_text("".join(before.get(without_size(line), line) for line in after))


if __name__ == "__main__":
    main()
