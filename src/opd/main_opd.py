"""`python -m opd.main_opd key=value ...`: on-policy distillation with plain Hydra overrides, for people who know verl."""

from __future__ import annotations

import os
import sys

import hydra

from opd.spec import SpecError
from opd.training.entry import CONFIG_NAME, config_dir, run_config, set_process_environment
from opd.training.errors import Unfit

_DEVICE_KEY = "trainer.device="


@hydra.main(config_path=config_dir(), config_name=CONFIG_NAME, version_base=None)
def main(config) -> None:
    """Compose the config from the command line and run it. `TEACHER_MODEL_PATH` fills an unset teacher path."""
    if config.opd.teacher.path is None and os.environ.get("TEACHER_MODEL_PATH"):
        config.opd.teacher.path = os.environ["TEACHER_MODEL_PATH"]
    try:
        run_config(config)
    except (SpecError, Unfit) as error:
        print(f"opd.main_opd: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    devices = [arg.removeprefix(_DEVICE_KEY) for arg in sys.argv[1:] if arg.startswith(_DEVICE_KEY)]
    set_process_environment(devices[-1] if devices else "cuda")
    main()
