"""`opdctl pull`: a checkpoint or any folder of a run, verified; an interrupted pull is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.console import Context, Namespace, Run, StoreUrl, ToolError, note, progress, usage_error

if TYPE_CHECKING:
    from opdctl.runs.find import RunPlace

Step = Annotated[
    int | None, typer.Option("--step", min=0, metavar="N", help="Step of the checkpoint; else the newest.")
]
Folder = Annotated[str | None, typer.Option("--folder", metavar="NAME", help="Another folder instead: eval, model.")]
Into = Annotated[Path | None, typer.Option("--into", metavar="DIR", help="Folder to write; else RUN/... here.")]


def pull(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    step: Step = None,
    folder: Folder = None,
    into: Into = None,
) -> None:
    """Download a complete checkpoint, verified by its sha256; or another folder of the run.

    After an interruption run it again: files that arrived whole stay.

    Example: `opdctl pull my-run -n opd --step 50 --into ckpt`
    """
    from opdctl.runs.find import LONG_PATIENCE_S, Finder

    if folder is not None and step is not None:
        raise usage_error("--folder and --step exclude each other", fix="give one of them")
    finder = Finder(store=store, namespace=namespace, context=context, patience_s=LONG_PATIENCE_S)
    [place] = finder.places([run])
    if folder is not None:
        target = into or Path(place.run_id) / folder
        note(f"{pull_folder(place, folder, target)} files of {folder} in the folder {target}")
        return
    target, done = pull_checkpoint(place, step, into)
    note(f"global_step_{done} of {place.run_id}: complete and verified in the folder {target}")


def pull_checkpoint(place: RunPlace, step: int | None, into: Path | None) -> tuple[Path, int]:
    """Download one sealed checkpoint; whole files of an earlier, interrupted pull stay.

    COMPLETE is written last: a folder that holds it is whole.

    Returns:
        The folder and the step.
    """
    from opd.runs.manifest import COMPLETE_FILE, MANIFEST_FILE, complete_steps, read_sealed, step_folder
    from opd.store.transfer import bring

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
    advance = progress(f"global_step_{chosen}", len(manifest.files))
    problems = bring(source, manifest.files, target, on_done=lambda file: advance())
    if problems:
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


def pull_folder(place: RunPlace, folder: str, into: Path) -> int:
    """Download every object below a folder of the run; files of the right size stay. Return the number of files."""
    from opd.store.base import ObjectInfo, leads_out
    from opd.store.transfer import in_threads

    prefix = folder.strip("/")
    if leads_out(prefix):
        raise ToolError(f"--folder {folder}: not inside the run {place.run_id}", fix="name a folder of the run")
    found = place.store.list(prefix)
    if not found:
        names = ", ".join(place.store.children("")) or "nothing"
        raise ToolError(f"run {place.run_id} has no folder {folder!r}", fix=f"it has: {names}")
    if outside := [info.key for info in found if leads_out(info.key.removeprefix(f"{prefix}/"))]:
        names = ", ".join(map(repr, outside[:3]))
        raise ToolError(f"objects of {place.run_id} would be written outside {into}: {names}")
    into.mkdir(parents=True, exist_ok=True)
    advance = progress(prefix, len(found))

    def fetch(info: ObjectInfo) -> None:
        path = into / info.key.removeprefix(f"{prefix}/")
        if not path.is_file() or path.stat().st_size != info.size:
            place.store.get_file(info.key, path)
        advance()

    in_threads(fetch, found)
    return len(found)
