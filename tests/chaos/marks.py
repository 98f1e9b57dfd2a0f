"""Loaded into the trainer's driver (`VERL_USE_EXTERNAL_MODULES`): writes down which phase it enters, and can freeze there.

One line `phase step` a phase, before the phase does anything. With `OPD_CHAOS_FREEZE_AT=phase:n,...` the driver stops itself
(SIGSTOP) as it enters a phase for the n-th time. So a fault can be put between two statements. `OPD_CHAOS_NAN_AT=step`
has one row of that step weigh nan. Nothing else is changed: the wrapped functions do what they did.
"""

import functools
import os
import signal
from collections import Counter

from tests.after_import import change_after_import

FILE = "OPD_CHAOS_MARKS"
FREEZE_AT = "OPD_CHAOS_FREEZE_AT"
NAN_AT = "OPD_CHAOS_NAN_AT"
_WATCHED = "opd.loop"
_entered: Counter[str] = Counter()


def mark(phase: str, step: int) -> None:
    """Append one line; a single write, so that a reader never sees half of it."""
    descriptor = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, f"{phase} {step}\n".encode())
    os.close(descriptor)
    _entered[phase] += 1
    if f"{phase}:{_entered[phase]}" in os.environ.get(FREEZE_AT, "").split(","):
        os.kill(os.getpid(), signal.SIGSTOP)


def _marking(owner, name: str, phase: str, step_of) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def marked(*args, **kwargs):
        mark(phase, step_of(*args))
        return original(*args, **kwargs)

    setattr(owner, name, marked)


def _poison() -> None:
    import torch

    from opd.kinds import Distillation

    original = Distillation.update

    @functools.wraps(original)
    def poisoned(self, job, rows, step):
        if os.environ.get(NAN_AT) == str(step):
            rows[0].columns["sample_weights"] = torch.tensor(float("nan"))
        return original(self, job, rows, step)

    Distillation.update = poisoned


def _watch(module) -> None:
    from opd.kinds import Distillation
    from opd.runs.checkpoints import Checkpoints
    from opd.runs.run import Run
    from opd.trainer import checkpointing

    mark("import", 0)
    _poison()
    _marking(module.Job, "__init__", "load", lambda *args: 0)
    _marking(module.Loop, "_train", "generation", lambda self, step: step)
    _marking(Distillation, "update", "update", lambda self, job, rows, step: step)
    _marking(module.Saves, "save", "save", lambda self, step, *rest: step)
    _marking(module.Loop, "_validate", "validation", lambda self, step: step)
    _marking(checkpointing, "seal", "upload", lambda run, group, step, *rest: step)
    _marking(Checkpoints, "finalise", "seal", lambda self, step, *rest: step)
    _marking(Checkpoints, "prune", "retention", lambda self, *rest: 0)
    _marking(Run, "finish", "finish", lambda self, *rest: 0)


if FILE in os.environ:
    change_after_import({_WATCHED: _watch})
