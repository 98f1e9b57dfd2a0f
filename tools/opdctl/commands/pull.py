"""`opdctl pull`: a checkpoint of a run, verified; an interrupted pull is resumed."""

from pathlib import Path
from typing import Annotated

import typer

from opd.runs.manifest import COMPLETE_FILE, MANIFEST_FILE, complete_steps, read_sealed, step_folder
from opd.store.transfer import bring
from opdctl.console import Context, Namespace, Run, StoreUrl, ToolError, note
from opdctl.runs.find import LONG_PATIENCE_S, Finder, RunPlace

Step = Annotated[
    int | None, typer.Option("--step", min=0, metavar="N", help="Step of the checkpoint; else the newest.")
]
Into = Annotated[Path | None, typer.Option("--into", metavar="DIR", help="Folder to write; else RUN/... here.")]


def pull(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    step: Step = None,
    into: Into = None,
) -> None:
    """Download a complete checkpoint, verified by its sha256.

    After an interruption run it again: files that arrived whole stay.

    Example: `opdctl pull my-run -n opd --step 50 --into ckpt`
    """
    finder = Finder(store=store, namespace=namespace, context=context, patience_s=LONG_PATIENCE_S)
    [place] = finder.places([run])
    target, done = pull_checkpoint(place, step, into)
    note(f"global_step_{done} of {place.run_id}: complete and verified in the folder {target}")


def pull_checkpoint(place: RunPlace, step: int | None, into: Path | None) -> tuple[Path, int]:
    """Download one sealed checkpoint; whole files of an earlier, interrupted pull stay.

    COMPLETE is written last: a folder that holds it is whole.

    Returns:
        The folder and the step.
    """
    known = complete_steps([place.store])
    steps = ", ".join(map(str, known))
    if not known:
        raise ToolError(f"run {place.run_id} has no complete checkpoint", fix="trainer.save_freq sets when one is made")
    if step is not None and step not in known:
        raise ToolError(f"run {place.run_id} has no complete checkpoint of step {step}", fix=f"complete steps: {steps}")
    chosen = known[-1] if step is None else step
    manifest = read_sealed(place.store, chosen)
    pruned = ToolError(f"global_step_{chosen} of {place.run_id} was pruned meanwhile", fix="try again")
    if manifest is None:
        raise pruned
    target = into or Path(place.run_id) / f"global_step_{chosen}"
    target.mkdir(parents=True, exist_ok=True)
    (target / COMPLETE_FILE).unlink(missing_ok=True)
    source = place.store.child(step_folder(chosen))
    if problems := bring(source, manifest.files, target):
        if not place.store.exists(f"{step_folder(chosen)}/{COMPLETE_FILE}"):  # retention deletes it first
            raise pruned
        text = "; ".join(problems.values())
        raise ToolError(
            f"global_step_{chosen} of {place.run_id} is damaged in the store: {text}",
            fix=f"pull another step; complete ones: {steps}",
        )
    (target / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    (target / COMPLETE_FILE).write_bytes(manifest.seal())
    return target, chosen
