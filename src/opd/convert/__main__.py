"""Command line of the conversion: one checkpoint, without a spec and without a run directory of its own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from opd.convert.errors import BadRequest, ConvertError
from opd.errors import RunError
from opd.experiment.algorithm import Convert

_EPILOG = """\
examples:
  python -m opd.convert outputs/my-run/checkpoints/global_step_100
  python -m opd.convert s3://bucket/runs/my-run/checkpoints/global_step_100/actor --target models/my-run --dtype bf16

dtype: base        each tensor as in the base model's files, else as in its config.json (default)
       checkpoint  as the trainer kept it, usually fp32
       bf16        everything in bf16

exit codes: 0 done, 1 the checkpoint is refused or something failed, 2 a request that cannot be followed
"""
_FIELDS = Convert.model_fields


def parser() -> argparse.ArgumentParser:
    """The command line; defaults and texts are the spec's."""
    out = argparse.ArgumentParser(
        prog="python -m opd.convert",
        description="FSDP shards of a checkpoint to a Hugging Face folder that plain transformers loads.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    checkpoint = os.environ.get("CHECKPOINT_PATH")
    out.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        nargs="?" if checkpoint else None,
        default=checkpoint,
        help=f"{_FIELDS['checkpoint'].description} Default: $CHECKPOINT_PATH.",
    )
    out.add_argument(
        "--target",
        metavar="DIR",
        help="folder or store URL to write; default: global_step_N-huggingface beside the checkpoint",
    )
    out.add_argument(
        "--dtype",
        choices=("checkpoint", "base", "bf16"),
        default=_FIELDS["dtype"].default,
        help=_FIELDS["dtype"].description,
    )
    out.add_argument("--base-model", metavar="MODEL", help=_FIELDS["base_model"].description)
    out.add_argument("--trust-remote-code", action="store_true", help=_FIELDS["trust_remote_code"].description)
    out.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="do not compare the result's logits with the checkpoint's",
    )
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = vars(parser().parse_args(argv))
    try:
        convert = Convert(**{key: value for key, value in options.items() if value is not None})
        from opd.convert.pipeline import convert_checkpoint  # torch and verl: not for --help

        convert_checkpoint(convert)
    except ValidationError as error:
        print(f"opd.convert: {error}", file=sys.stderr)
        return BadRequest.exit_code
    except (ConvertError, RunError) as error:
        print(f"opd.convert: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"opd.convert: {type(error).__name__}: {error}", file=sys.stderr)
        return ConvertError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
