"""Loaded into the trainer's driver (`VERL_USE_EXTERNAL_MODULES`): writes down which phase it enters, and can freeze there.

One line `phase step` a phase, before the phase does anything. `OPD_CHAOS_FREEZE_AT=phase:n,...` has the driver stop itself
(SIGSTOP) as it enters a phase for the n-th time, so that a fault can be put between two statements. `OPD_CHAOS_NAN_AT=step`
has one row of that step weigh nan. Nothing else is changed: the wrapped functions do what they did.
"""

from __future__ import annotations

import functools
import os
import signal
from collections import Counter

from tests.after_import import change_after_import

FILE = "OPD_CHAOS_MARKS"
FREEZE_AT = "OPD_CHAOS_FREEZE_AT"
NAN_AT = "OPD_CHAOS_NAN_AT"
_WATCHED = "opd.trainer.distillation"
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


def _poison(module) -> None:
    import torch

    original = module.OPDTrainer._put_row_facts

    @functools.wraps(original)
    def poisoned(self, batch, metrics) -> None:
        original(self, batch, metrics)
        if os.environ.get(NAN_AT) == str(self.global_steps):
            weight = {"sample_weights": torch.tensor([float("nan")])}
            module.tq.kv_batch_put(
                keys=batch.keys[:1], partition_id=batch.partition_id, fields=module.TensorDict(weight, batch_size=1)
            )

    module.OPDTrainer._put_row_facts = poisoned


def _watch(module) -> None:
    from opd.runs.checkpoints import Checkpoints
    from opd.runs.run import Run
    from opd.worker import checkpointing

    mark("import", 0)
    _poison(module)
    trainer = module.OrderedTrainer
    _marking(trainer, "_setup", "load", lambda self: 0)
    _marking(module.OPDTrainer, "_update_actor", "update", lambda self, *rest: self.global_steps)
    for name, phase in (
        ("prepare_step", "generation"),
        ("_save_checkpoint", "save"),
        ("_validate", "validation"),
    ):
        _marking(trainer, name, phase, lambda self, *rest: self.global_steps)
    _marking(checkpointing, "seal", "upload", lambda run, group, step, *rest: step)
    _marking(Checkpoints, "finalise", "seal", lambda self, step, *rest: step)
    _marking(Checkpoints, "prune", "retention", lambda self, *rest: 0)
    _marking(Run, "finish", "finish", lambda self, *rest: 0)


if FILE in os.environ:
    change_after_import({_WATCHED: _watch})
