"""The log container of HTTPMode: `python -m opd.pods.follow FOLDER` prints the output of Ray's job drivers until it ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import BinaryIO

PATTERN = "job-driver-*.log"
POLL_INTERVAL_S = 0.5


def poll(folder: Path, offsets: dict[str, int], out: BinaryIO) -> int:
    """Copy new bytes of every matching file after its offset; return their number.

    Files may appear later, and the folder may be a link that moves.
    """
    num_bytes = 0
    for place in map(os.path.realpath, sorted(folder.glob(PATTERN))):
        try:
            with open(place, "rb") as file:
                file.seek(offsets.get(place, 0))
                num_bytes += out.write(file.read())
                offsets[place] = file.tell()
        except FileNotFoundError:
            continue  # the link has moved in between
    out.flush()
    return num_bytes


if __name__ == "__main__":
    # Process 1 of a container ignores SIGTERM without a handler, and the pod would wait out its grace period.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    known: dict[str, int] = {}
    while True:
        if not poll(Path(sys.argv[1]), known, sys.stdout.buffer):
            time.sleep(POLL_INTERVAL_S)
