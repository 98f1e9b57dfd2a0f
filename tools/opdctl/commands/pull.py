"""`opdctl pull`: a checkpoint or any folder of a run, verified; an interrupted pull is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opdctl.console import Context, Namespace, Run, StoreUrl, Timeout, deadline, note, progress
from opdctl.errors import usage_error

Step = Annotated[int | None, typer.Option("--step", min=0, help="Step of the checkpoint; by default the newest.")]
Folder = Annotated[
    str | None, typer.Option("--folder", help="Another folder of the run instead, such as `eval` or `model`.")
]
Into = Annotated[Path | None, typer.Option("--into", help="Folder to write; RUN/... here by default.")]


def pull(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    step: Step = None,
    folder: Folder = None,
    into: Into = None,
    timeout: Timeout = 3600.0,
) -> None:
    """Download a complete checkpoint (verified against its manifest's sha256), or another folder of the run.

    After an interruption run it again: files that arrived whole are not fetched again.

    Example: `opdctl pull quickstart --store build/quickstart/store --step 50 --into ckpt`
    """
    from opdctl.runs.download import pull_checkpoint, pull_folder
    from opdctl.runs.places import Finder

    if folder is not None and step is not None:
        raise usage_error("--folder and --step exclude each other", fix="give one of them")
    with deadline(timeout):
        place = Finder(store=store, namespace=namespace, context=context, timeout_s=timeout).place(run)
        if folder is not None:
            target = into or Path(place.run_id) / folder
            num_files = pull_folder(place, folder, target, show=progress)
            note(f"{num_files} files of {folder} in the folder {target}")
            return
        target, done = pull_checkpoint(place, step, into, show=progress)
        note(f"global_step_{done} of {place.run_id}: complete and verified in the folder {target}")
