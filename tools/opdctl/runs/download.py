"""Downloads of a run's files: checkpoints are verified by their manifest and hashes, other folders by size."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from opd.runs.manifest import COMPLETE_FILE, MANIFEST_FILE, step_folder
from opd.runs.resume import complete_steps, read_sealed
from opd.store.base import ObjectInfo, leads_out
from opd.store.transfer import bring, in_threads
from opdctl.errors import ToolError
from opdctl.runs.places import RunPlace

# `show(title, total)` opens a progress bar and yields the function to call after each file.
Show = Callable[[str, int], AbstractContextManager[Callable[[], None]]]


def pull_checkpoint(place: RunPlace, step: int | None, into: Path | None, *, show: Show) -> tuple[Path, int]:
    """Download one sealed checkpoint; whole files of an earlier, interrupted pull stay.

    COMPLETE is written last: a folder that holds it is whole.

    Returns:
        The folder and the step.

    Raises:
        ToolError: the run has no such checkpoint, or a file differs from the manifest.
    """
    chosen = _choose(place, step)
    manifest = read_sealed(place.store, chosen)
    pruned = ToolError(f"global_step_{chosen} of {place.run_id} was pruned meanwhile", fix="try again")
    if manifest is None:
        raise pruned
    target = into or Path(place.run_id) / f"global_step_{chosen}"
    target.mkdir(parents=True, exist_ok=True)
    (target / COMPLETE_FILE).unlink(missing_ok=True)
    source = place.store.child(step_folder(chosen))
    with show(f"global_step_{chosen}", len(manifest.files)) as advance:
        problems = bring(source, manifest.files, target, on_done=lambda file: advance())
    if problems:
        if not place.store.exists(f"{step_folder(chosen)}/{COMPLETE_FILE}"):  # retention deletes it first
            raise pruned
        raise ToolError(
            f"global_step_{chosen} of {place.run_id} is damaged in the store: {'; '.join(problems.values())}",
            fix=f"pull another step; complete ones: {', '.join(map(str, complete_steps([place.store])))}",
        )
    (target / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    (target / COMPLETE_FILE).write_bytes(manifest.seal())
    return target, chosen


def pull_folder(place: RunPlace, folder: str, into: Path, *, show: Show) -> int:
    """Download every object below a folder of the run; files of the right size stay. Return the number of files.

    Raises:
        ToolError: no such folder, or a name that would be written outside `into`.
    """
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

    def fetch(info: ObjectInfo) -> None:
        path = into / info.key.removeprefix(f"{prefix}/")
        if not path.is_file() or path.stat().st_size != info.size:
            place.store.get_file(info.key, path)
        advance()

    with show(prefix, len(found)) as advance:
        in_threads(fetch, found)
    return len(found)


def _choose(place: RunPlace, step: int | None) -> int:
    complete = complete_steps([place.store])
    if not complete:
        raise ToolError(f"run {place.run_id} has no complete checkpoint", fix="trainer.save_freq sets when one is made")
    if step is not None and step not in complete:
        steps = ", ".join(map(str, complete))
        raise ToolError(f"run {place.run_id} has no complete checkpoint of step {step}", fix=f"complete steps: {steps}")
    return complete[-1] if step is None else step
