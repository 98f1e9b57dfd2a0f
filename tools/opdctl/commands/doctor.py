"""`opdctl doctor`: is everything there that a start needs? Each line says what is wrong and how to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opdctl.console import StoreUrl, Timeout, deadline
from opdctl.errors import EXIT_FAILURE, EXIT_OK

File = Annotated[Path | None, typer.Argument(metavar="[EXP.yaml]", help="Experiment file to check for.")]
Charts = Annotated[Path | None, typer.Option("--charts", help="Folder of the charts; this checkout's by default.")]


def doctor(experiment: File = None, store: StoreUrl = None, charts: Charts = None, timeout: Timeout = 60.0) -> None:
    """Check spec, store (writable, create-only), Helm, chart and trainer; exit 1 if anything is missing.

    Example: `opdctl doctor manifests/experiments/quickstart.yaml`
    """
    import os

    from opdctl.checks import check_all
    from opdctl.redact import redact

    with deadline(timeout):
        checks = check_all(experiment, store=store, charts=charts, env=os.environ, timeout_s=timeout)
    for check in checks:
        print(redact(f"{'ok     ' if check.is_ok else 'MISSING'} {check.name:8s} {check.message}"))
        if check.fix:
            print(redact(f"                 fix: {check.fix}"))
    raise typer.Exit(EXIT_OK if all(check.is_ok for check in checks) else EXIT_FAILURE)
