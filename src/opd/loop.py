"""The training loop of every kind: a step in the order in which it happens, what runs next to it, and how a run ends."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.utils.debug import marked_timer
from verl.utils.logging_utils import configure_verl_logging

from opd.cluster.shutdown import GracefulStop
from opd.ending import STOPPED, Ending, serve_pods
from opd.experiment.run_config import RunConfig
from opd.job import Data, Job
from opd.kinds import KINDS, Kind, serves
from opd.monitor import monitor
from opd.rollout.serving import start_cpu_servers
from opd.runs.headline import validation_scores
from opd.runs.progress import PROGRESS
from opd.runs.run import Run
from opd.trainer import checkpointing
from opd.update import checks

SEAL_POLL_S = 5.0
"""Seconds between two looks at a save that the loop waits for."""


def train(config: DictConfig, run: Run) -> Ending:
    """Train one kind from the newest checkpoint to the last step, or until the run is asked to end.

    Args:
        config: verl's, with the run's spec.
        run: the attempt.
    """
    configure_verl_logging()
    OmegaConf.resolve(config)
    spec = RunConfig.of(config).trained
    trainer = spec.trainer
    folder = str(run.attempt_dir)
    PROGRESS.watch(folder=folder, floor_s=trainer.stall_floor_s, factor=trainer.stall_factor)
    PROGRESS.enter("start", 0)
    cpu_servers = start_cpu_servers(config) if serves(spec) else {}  # first: their imports take as long as the ranks'
    data = Data(config)
    kind = KINDS[spec.kind](data, run)
    job = Job(config, run, data, worker=kind.worker, role=kind.role, serves=serves(spec), cpu_servers=cpu_servers)
    ending = None
    try:
        ending = Loop(job, kind).run_to_end()
        return ending
    finally:
        job.log.finish(exit_code=0 if ending is not None and ending.result is not None else 1)


class Loop:
    """The steps of a run."""

    def __init__(self, job: Job, kind: Kind) -> None:
        self.job, self.kind, self.run = job, kind, job.run
        self.trainer = job.ours.trained.trainer
        self.step = 0
        """The last one that has ended."""
        self.saves = Saves(job, kind)
        self.stop = GracefulStop()

    def run_to_end(self) -> Ending:
        """Make the steps; what runs next to them (a save on its way) has ended when this returns or raises."""
        try:
            self.step = self.job.resume(self.kind.load)
            self.job.send_weights(self.step)
            with self.stop:  # before, a signal ends the process at once
                ending = self._steps()
                self.saves.wait()
        except (Exception, KeyboardInterrupt):  # the second is how `opd.cluster.lost` ends a run
            self.saves.sealing.leave()
            raise
        PROGRESS.rest("end")  # the store's own deadlines bound what is left
        if ending is None:
            with self.run.storing_the_end():
                checkpointing.upload_missing(self.run, self.job.ranks)
            ending = Ending(result=self._result())
        return ending

    def _steps(self) -> Ending | None:
        """Make the steps that are left; an ending before the last of them, else None."""
        if self.trainer.val_before_train and (ending := self._record(self._validate(self.step))):
            return ending
        while self.step < self.job.data.total_steps:
            metrics = self._train(self.step + 1)
            self.step += 1
            if ending := self._record(metrics):
                return ending
        return None

    def _train(self, step: int) -> dict[str, Any]:
        """Make one step: answers, weights, update, save, the servers' weights, validation; return its metrics."""
        job, kind, timing = self.job, self.kind, dict[str, float]()
        PROGRESS.enter("rollout", step)
        metrics: dict[str, Any] = {}
        with marked_timer("step", timing):
            with marked_timer("gen", timing):
                rows, found = kind.answers(job, step)
                job.let_servers_sleep()
            PROGRESS.enter("update", step)
            with marked_timer("adv", timing):
                metrics |= found | kind.weigh(rows)
            with marked_timer("update_actor", timing):
                metrics |= kind.update(job, rows, step)
            if self._is_due(step, self.trainer.save_freq):
                with marked_timer("save_checkpoint", timing):
                    self.saves.save(step, timing)
            with marked_timer("update_weights", timing):
                job.send_weights(step)
        if self._is_due(step, self.trainer.test_freq):
            with marked_timer("testing", timing):
                metrics |= self._validate(step)
        return metrics | kind.describe(job, rows, step, timing)

    def _is_due(self, step: int, every: int) -> bool:
        return every > 0 and (step % every == 0 or step == self.job.data.total_steps)

    def _validate(self, step: int) -> dict[str, Any]:
        PROGRESS.enter("validation", step)
        return self.kind.validate(self.job, step)

    def _record(self, metrics: Mapping[str, Any]) -> Ending | None:
        """Write the metrics of the last step, then seal its checkpoint, so that a resume from it has lost no row; serve requests."""
        self.job.log.log(dict(metrics), self.step)
        PROGRESS.enter("seal", self.step)
        self.saves.seal()
        self.kind.check()
        return self._serve()

    def _serve(self) -> Ending | None:
        """Save when pods are being evicted and wait until they are gone; end a run that is asked to. Call between steps only."""
        is_last = self.step >= self.job.data.total_steps
        ending = serve_pods(self.run, lambda: self.saves.now(self.step), is_over=lambda: self.stop.requested or is_last)
        if ending is not None:
            return ending
        PROGRESS.enter("next step", self.step)
        if self.stop.requested and not is_last:
            if self.saves.now(self.step) == self.step:
                print(f"saved step {self.step}; the same command continues from here", flush=True)
            return STOPPED
        self.saves.wake(self.step)
        return None

    def _result(self) -> dict[str, Any]:
        """Return what `result.json` holds of a training run."""
        history = self.run.history()
        scores = [found for row in history if (found := validation_scores(row))]
        return {
            "steps": self.job.data.total_steps,
            "validation_before": scores[0] if scores else {},
            "validation_after": scores[-1] if scores else {},
            **checks.summary(history),
            **monitor.summary(history),
        }


class Saves:
    """Checkpoints of a run: saved by the ranks within a step, sealed next to the following steps once the step's metrics are written."""

    def __init__(self, job: Job, kind: Kind) -> None:
        self.job, self.kind, self.run = job, kind, job.run
        self.keep = job.ours.checkpoint
        self.sealing = checkpointing.Sealing()
        self._unsealed: int | None = None
        self._sealed: int | None = None
        self._servers_sleep = False

    def save(self, step: int, timing: dict[str, float]) -> None:
        """Save a step; one save is on its way at a time."""
        PROGRESS.enter("save", step)
        with marked_timer("save_wait", timing):
            self.wait()
        if not self.run.checkpoints.begin(step):
            return
        self.kind.save(self.job.save(step))
        self._unsealed = step

    def seal(self) -> None:
        """Have a save sealed, next to the next steps if it may be; raises why an earlier one could not be."""
        self._sealed = self.sealing.wait(0.0) or self._sealed
        step, self._unsealed = self._unsealed, None
        if step is None:
            return
        self.sealing.begin(
            step, lambda: checkpointing.seal(self.run, self.job.ranks, step, self.keep, self.sealing.answered)
        )
        if not self.keep.overlap:
            self.wait()

    def wait(self) -> None:
        """Return once no save is on its way, which may take as long as it takes while the ranks answer."""
        seen = self.sealing.num_answers
        while self.sealing.is_running:
            self._sealed = self.sealing.wait(SEAL_POLL_S) or self._sealed
            if (now := self.sealing.num_answers) != seen:
                seen = now
                PROGRESS.tick()

    def now(self, step: int) -> int | None:
        """Save, seal and upload the step that has just ended, unless it was; return the step that is safe, None if none is."""
        self.wait()
        if self.job.ours.trained.trainer.save_freq > 0 and 0 < step != self._sealed:
            # As within a step: what the servers hold between two is room that the memory plan gives to a save.
            self.job.let_servers_sleep()
            self._servers_sleep = True
            self.save(step, {})
            self.seal()
            self.wait()
            self._sealed = step
        return self._sealed

    def wake(self, step: int) -> None:
        """Wake up servers that a save between two steps has let sleep."""
        if self._servers_sleep:
            self._servers_sleep = False
            self.job.send_weights(step)
