"""`python -m opd.agent.viewer RUN`: the page of a run directory's conversations (`opdctl report` writes it too)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from opd.agent.viewer.collect import NUM_FILES, load
from opd.agent.viewer.page import render
from opd.store.opening import open_store


def main(argv: list[str] | None = None) -> int:
    """Write the page; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m opd.agent.viewer",
        description=__doc__,
        epilog="example: python -m opd.agent.viewer build/opd-agent-quickstart/opd-agent-quickstart",
    )
    parser.add_argument("run", help="run directory, or its URL in the store")
    parser.add_argument("-o", "--output", type=Path, default=Path("trajectories.html"), help="page to write")
    parser.add_argument("--files", type=int, default=NUM_FILES, metavar="N", help="files of each partition to show")
    args = parser.parse_args(argv)
    trajectories = load(open_store(args.run), num_files=args.files)
    if not trajectories:
        print(
            f"{args.run}: no conversations there; was it an agent run with agent.num_kept_trajectories > 0?",
            file=sys.stderr,
        )
        return 1
    args.output.write_text(render(args.run.rstrip("/").rpartition("/")[2], trajectories), encoding="utf-8")
    print(f"wrote {args.output}: {len(trajectories)} conversations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
