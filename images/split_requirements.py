"""`uv export ... | python3 split_requirements.py HEAVY REST`: the lock in two files, for two image layers.

HEAVY gets what is large and changes with the CUDA stack only, REST all others; every entry keeps its hashes.
"""

from __future__ import annotations

import re
import sys

HEAVY = re.compile(
    r"^(torch|torchvision|torchaudio|triton|vllm|xformers|flash-attn|flashinfer-\w+|cuda-[\w-]+|cupy-[\w-]+|nvidia-[\w-]+)(?===)"
)


def entries(text: str) -> list[str]:
    """Return the requirements of an export, each with its continuation lines, without comments."""
    found: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0].isspace():
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


def main() -> None:
    """Read the export from standard input and write both files."""
    heavy, rest = sys.argv[1:]
    every = entries(sys.stdin.read())
    for path, wanted in ((heavy, True), (rest, False)):
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{entry}\n" for entry in every if bool(HEAVY.match(entry)) is wanted)


if __name__ == "__main__":
    main()
