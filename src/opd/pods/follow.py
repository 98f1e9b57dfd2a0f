"""The log container of HTTPMode: `python -m opd.pods.follow FOLDER` prints the output of Ray's job drivers until it ends."""

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
    """A copier of new bytes of every matching file; files may appear later, and the folder may be a link that moves."""

    def __init__(self, folder: Path, out: BinaryIO) -> None:
        self.folder, self.out = folder, out
        self.offsets: dict[str, int] = {}

    def poll(self) -> int:
        """Copy new bytes; return their number."""
        num_bytes = 0
        for path in sorted(self.folder.glob(PATTERN)):
            place = os.path.realpath(path)
            try:
                with open(place, "rb") as file:
                    file.seek(self.offsets.get(place, 0))
                    data = file.read()
                    self.offsets[place] = file.tell()
            except FileNotFoundError:
                continue  # the link has moved in between
            self.out.write(data)
            num_bytes += len(data)
        if num_bytes:
            self.out.flush()
        return num_bytes


def main(argv: Sequence[str] | None = None) -> int:
    """Follow until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m opd.pods.follow", description=__doc__)
    parser.add_argument("folder", type=Path, help="Ray's log folder")
    follower = Follower(parser.parse_args(argv).folder, sys.stdout.buffer)
    # Process 1 of a container ignores SIGTERM without a handler, and the pod would wait out its grace period.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    while True:
        if not follower.poll():
            time.sleep(POLL_INTERVAL_S)


if __name__ == "__main__":
    sys.exit(main())
