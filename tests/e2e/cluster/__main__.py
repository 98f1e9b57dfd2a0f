"""`python -m tests.e2e.cluster up|down|shell`: the one-node cluster of real parts on this machine."""

import argparse
import sys
from pathlib import Path

from tests.e2e.cluster import buildah, images, lifecycle, packages

import gotools


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring it up (root)")
    up.add_argument("--image", type=Path, action="append", default=[], help="load this OCI archive; build no image")
    commands.add_parser("down", help="end it, also half a one, and put the machine back")
    shell = commands.add_parser("shell", help="a shell with kubectl and helm inside, as opd-user")
    shell.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="a command instead of a shell")
    args = parser.parse_args()
    try:
        if args.command == "up":
            with lifecycle.held("make cluster"):
                image = None if args.image else images.build_cpu_image(_say)
                archives = (image.archive,) if image else tuple(path.resolve() for path in args.image)
                lifecycle.up(_say, archives=archives)
                if image:
                    _say(f"to start a run: --set cluster.image.ref={image.ref} --set cluster.image.local=true")
        elif args.command == "down":
            with lifecycle.held("make cluster-down"):
                _say("the cluster is gone" if lifecycle.down(_say) else "no cluster is here")
        else:
            return lifecycle.shell(args.words)
    except (lifecycle.ClusterError, gotools.ToolError, packages.PackageError, buildah.ImageError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
