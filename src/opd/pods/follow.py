"""`python -m opd.pods.follow FOLDER`: prints what Ray's job drivers write, for ever; the log container of HTTPMode."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

PATTERN = "job-driver-*.log"
POLL_INTERVAL_S = 0.5


class Follower:
    """Copies new bytes of every matching file to `out`; files may appear later, and the folder may be a link that moves."""

    def __init__(self, folder: Path, out: BinaryIO) -> None:
        self.folder = folder
        self.out = out
        self.offsets: dict[str, int] = {}

    def poll(self) -> int:
        """Copy what is new; returns the number of bytes."""
        num_bytes = 0
        for path in sorted(self.folder.glob(PATTERN)):
            place = os.path.realpath(path)
            try:
                with open(place, "rb") as file:
                    file.seek(self.offsets.get(place, 0))
                    data = file.read()
                    self.offsets[place] = file.tell()
            except FileNotFoundError:
                continue  # the link has moved on between the look and the read
            self.out.write(data)
            num_bytes += len(data)
        if num_bytes:
            self.out.flush()
        return num_bytes


def main(argv: Sequence[str] | None = None) -> int:
    """Follow until the container is told to end."""
    parser = argparse.ArgumentParser(prog="python -m opd.pods.follow", description=__doc__)
    parser.add_argument("folder", type=Path, help="Ray's log folder")
    follower = Follower(parser.parse_args(argv).folder, sys.stdout.buffer)
    # Process 1 of a container ignores SIGTERM without a handler, and the pod would wait out its grace period.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    while True:
        if not follower.poll():
            time.sleep(POLL_INTERVAL_S)


if __name__ == "__main__":
    sys.exit(main())
