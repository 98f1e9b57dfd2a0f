"""Command line of the conversion: one checkpoint, without a spec and without a run directory of its own."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import get_args

from pydantic import ValidationError

from opd.convert import refused
from opd.convert.errors import BadRequest, say
from opd.errors import RunError
from opd.experiment.algorithm import Convert

_EPILOG = """\
examples:
  python -m opd.convert outputs/my-run/checkpoints/global_step_100
  python -m opd.convert s3://bucket/runs/my-run/checkpoints/global_step_100/actor --target models/my-run --dtype bf16

dtype: base        as the base model's config.json says (default)
       checkpoint  as the trainer kept it, usually fp32
       bf16        everything in bf16

exit codes: 0 done, 1 the checkpoint is not whole or something failed, 2 a request that cannot be followed
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line; texts are the spec's."""
    texts = {name: field.description for name, field in Convert.model_fields.items()}
    out = argparse.ArgumentParser(
        prog="python -m opd.convert",
        description="FSDP shards of a checkpoint to a Hugging Face folder that plain transformers loads.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    checkpoint = os.environ.get("CHECKPOINT_PATH")
    text = f"{texts['checkpoint']} Default: $CHECKPOINT_PATH."
    out.add_argument(
        "checkpoint", metavar="CHECKPOINT", nargs="?" if checkpoint else None, default=checkpoint, help=text
    )
    out.add_argument("--target", metavar="DIR", help=texts["target"])
    out.add_argument("--dtype", choices=get_args(Convert.model_fields["dtype"].annotation), help=texts["dtype"])
    out.add_argument("--trust-remote-code", action="store_true", help=texts["trust_remote_code"])
    text = "do not load the result and compare it with the checkpoint"
    out.add_argument("--no-verify", dest="verify", action="store_false", help=text)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = vars(parser().parse_args(argv))
    try:
        convert = Convert(**{key: value for key, value in options.items() if value is not None})
        from opd.convert.pipeline import convert_checkpoint  # torch: not for --help

        convert_checkpoint(convert)
    except ValidationError as error:
        say(error)
        return BadRequest.exit_code
    except (RunError, OSError) as error:
        return refused(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
