"""`opdctl run`: an experiment on this machine, by the trainer's own launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opdctl.commands.render import Sets, Site
from opdctl.errors import ToolError

File = Annotated[Path, typer.Argument(metavar="EXP.yaml", help="Experiment file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print verl's overrides and start nothing.")]
RunTimeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Stop the run after this; by default never."),
]


def run(
    experiment: File, site: Site = None, sets: Sets = None, dry_run: DryRun = False, timeout: RunTimeout = None
) -> None:
    """Run an experiment on this machine, with an embedded Ray; Ctrl-C saves and ends it.

    Example: `opdctl run manifests/experiments/quickstart.yaml --set trainer.total_steps=10`
    """
    import os

    from opd.config import ConvertSpec, load_spec
    from opdctl.local import launch, trainer_is_installed

    # A bad spec is told here, in milliseconds, and nothing is started.
    spec = load_spec(experiment, site=site, env=os.environ, sets=sets or []).spec
    if not dry_run and not trainer_is_installed():
        what = "the converter" if isinstance(spec, ConvertSpec) else "the trainer"
        raise ToolError(
            f"{what} is not installed here: this is the tool alone", fix="`make setup` installs the train extra"
        )
    words = [word for text in sets or [] for word in ("--set", text)] + (["--dry-run"] if dry_run else [])
    words += ["--site", str(site)] if site else []
    raise typer.Exit(launch(experiment, words, timeout_s=timeout))
