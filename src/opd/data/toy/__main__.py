"""Command line of the toy task: writes its training and held-out problems as parquet."""

import argparse

import pyarrow.parquet as pq

from opd.data.toy.task import write_parquet

EXAMPLE = "example:\n  python -m opd.data.toy --out build/quickstart --seed 7 --num-train 2048"


def main(argv: list[str] | None = None) -> None:
    """Parse, write, and say what was written."""
    parser = argparse.ArgumentParser(
        prog="python -m opd.data.toy",
        description="Write the toy task (two-digit addition) as train.parquet and heldout.parquet, in verl's columns.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write to, made if it is not there")
    parser.add_argument("--seed", type=int, default=0, help="order (and choice) of the training rows (default: 0)")
    parser.add_argument("--num-train", type=int, metavar="N", help="training rows to write (default: all)")
    parser.add_argument("--num-heldout", type=int, metavar="N", help="held-out rows to write (default: all)")
    args = parser.parse_args(argv)
    try:
        paths = write_parquet(args.out, seed=args.seed, num_train=args.num_train, num_heldout=args.num_heldout)
    except ValueError as error:
        parser.error(str(error))
    for path in paths:
        print(f"{pq.read_metadata(path).num_rows} rows: {path}")


if __name__ == "__main__":
    main()
