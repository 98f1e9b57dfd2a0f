"""Tables of runs that commands and the report share."""

from collections.abc import Sequence

from opd.runs.headline import VALIDATION_PREFIX
from opdctl.runs.record import RunRecord, is_validation_accuracy
from opdctl.tables import NONE, Sheet, ago, duration, number, percent, with_error


def runs_sheet(records: Sequence[RunRecord]) -> Sheet:
    """Return one row a run: state, progress, loss, accuracies, newest checkpoint."""
    names = ("run", "state", "step", "ETA", "loss", "train acc", "validation", "checkpoint", "last sign", "GPUs", "kind",
             "try")  # fmt: skip
    lines = [
        (
            record.run_id, record.state, progress_text(record), duration(record.eta_s), number(record.loss),
            training_text(record), validation_text(record) or NONE,
            str(record.complete_steps[-1]) if record.complete_steps else NONE, ago(record.last_sign_s),
            str(record.num_gpus or NONE), record.kind or "?", str(record.num_attempts or NONE),
        )
        for record in records
    ]  # fmt: skip
    return Sheet(names=names, lines=lines)


def checkpoints_sheet(record: RunRecord) -> Sheet | None:
    """Return every checkpoint of one run; None without any."""
    lines = [
        (f"global_step_{entry['step']}", str(entry["num_files"]), number(entry["num_bytes"] / 2**30),
         "complete" if entry["is_complete"] else "not complete: no COMPLETE marker")
        for entry in record.checkpoints
    ]  # fmt: skip
    names = ("checkpoint", "files", "GiB", "state")
    return Sheet(names=names, lines=lines, title=f"{record.run_id}: checkpoints") if lines else None


def evaluation_sheet(records: Sequence[RunRecord]) -> Sheet | None:
    """Return the evaluations of runs; None without any."""
    lines = [
        (record.run_id, name, f"{one['num_problems']} × {one['num_samples']}", str(one["num_dropped"] or NONE),
         with_error(one["mean"], one["standard_error"]), number(one["pass_at"]), number(one["maj"]))
        for record in records
        for name, one in sorted(record.evaluation.items())
    ]  # fmt: skip
    names = ("run", "data set", "problems × answers", "too long", "mean@n", "pass@n", "maj@n")
    caption = "± standard error, clustered by problem"
    return Sheet(names=names, lines=lines, title="evaluation", caption=caption) if lines else None


def progress_text(record: RunRecord) -> str:
    """Return `7/40`, or a pipeline's stage."""
    if record.stage or record.last_step is None:
        return record.stage or NONE
    return f"{record.last_step}/{record.total_steps}" if record.total_steps else str(record.last_step)


def training_text(record: RunRecord) -> str:
    """Return the accuracy of the training answers in percent, or their scorer's mean as it is."""
    score = record.training_score
    if score is None:
        return NONE
    return percent(score.value) if score.is_share else f"{number(score.value)} (score)"


def validation_text(record: RunRecord) -> str:
    """Return `toy_add 35.4 → 82.1 %` for each validation set, one a line."""
    return "\n".join(
        f"{name.removeprefix(VALIDATION_PREFIX)} {' → '.join(f'{100 * value:.1f}' for value in values)} %"
        for name, values in sorted(record.validation.items())
        if is_validation_accuracy(name)
    )
