"""A trainer around the real control code: claims, resumes, trains, saves and ends in the order of `opd.loop`.

What verl and Ray do in between is simulated: a step takes time, a rank is a process whose methods the driver calls.
"""

import functools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opd.cluster.shutdown import GracefulStop
from opd.errors import PartLost, RunFinished, Stopped
from opd.experiment.sections import Checkpoint
from opd.pods import stop
from opd.runs.run import Run
from opd.trainer import checkpointing
from opd.update.shards import ShardUploads
from tests.simulator.copies import HostCopies
from tests.simulator.oracle import content, state_in
from tests.simulator.scheduler import Killed, Process

PARTS = ("model", "optim", "extra_state")
DRIVER = -1


class Engine:
    """verl's part of a worker: saves and loads its shards, syncing nothing."""

    world: Any
    rank: int
    num_ranks: int
    attempt: int
    _copies: HostCopies | None

    def save_checkpoint(self, local_path: str, hdfs_path: None, global_step: int, max_ckpt_to_keep: None) -> None:
        folder = Path(local_path)
        folder.mkdir(parents=True, exist_ok=True)
        writes = self._copies and self._copies.writes
        for part in PARTS:
            data = content(
                self.attempt, global_step, self.rank, part, self.world.oracle.states[self.attempt, global_step]
            )
            if writes is None:
                _write(folder / self._name(part), data)
            else:
                writes.append(functools.partial(_write, folder / self._name(part), data))

    def load_checkpoint(self, local_path: str, attempt: int, step: int) -> None:
        for part in PARTS:
            data = (Path(local_path) / "actor" / self._name(part)).read_bytes()
            self.world.oracle.loaded(step, attempt, self.rank, part, data)

    def _name(self, part: str) -> str:
        return f"{part}_world_size_{self.num_ranks}_rank_{self.rank}.pt"


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


class Rank(ShardUploads, Engine):
    """The worker of one rank."""

    def __init__(self, world: Any, rank: int, num_ranks: int, attempt: int):
        self.world, self.rank, self.num_ranks, self.attempt = world, rank, num_ranks, attempt
        self.copies_saves = world.plan.overlap


class Workers:
    """verl's worker group: every method is called in every rank's process, and answers with a list."""

    def __init__(self, world: Any, processes: list[Process], attempt: int):
        self.world, self.processes, self.world_size = world, processes, len(processes)
        self.ranks = [Rank(world, rank, len(processes), attempt) for rank in range(len(processes))]
        for process in processes:
            process.attempt = attempt

    def __getattr__(self, name: str) -> Callable[..., list[Any]]:
        return lambda *arguments, **options: self._call(
            [lambda rank=rank: getattr(rank, name)(*arguments, **options) for rank in self.ranks]
        )

    def load(self, path: str, attempt: int, step: int) -> None:
        self._call([lambda rank=rank: Engine.load_checkpoint(rank, path, attempt, step) for rank in self.ranks])

    def _call(self, calls: list[Callable[[], Any]]) -> list[Any]:
        answers: dict[int, Any] = {}
        errors: list[BaseException] = []

        def work(rank: int) -> None:
            try:
                answers[rank] = calls[rank]()
            except Killed:
                raise
            except Exception as error:  # noqa: BLE001 - Ray brings it to the driver
                errors.append(error)

        tasks = []
        for rank, process in enumerate(self.processes):
            if process.is_dead:
                raise PartLost([f"rank {rank}"])
            tasks.append(self.world.spawn(process, f"rank {rank}", lambda rank=rank: work(rank)))
        for task in tasks:
            self.world.join(task)
        if errors:
            raise errors[0]
        if lost := [rank for rank in range(self.world_size) if rank not in answers]:
            raise PartLost([f"rank {rank}" for rank in lost])
        return [answers[rank] for rank in range(self.world_size)]


class Trainer:
    """One attempt's training."""

    def __init__(self, world: Any, run: Run, workers: Workers):
        self.world, self.run, self.workers, self.plan = world, run, workers, world.plan
        self.keep = Checkpoint(keep_last=self.plan.keep_last, keep_every=self.plan.keep_every)
        self.stop = GracefulStop()
        self.step = 0
        self.state = 0
        self._unsealed: int | None = None
        self._saved: int | None = None
        self.sealing = checkpointing.Sealing()

    def fit(self) -> dict[str, Any]:
        self._resume()
        try:
            with self.stop:
                while self.step < self.plan.num_steps:
                    self.step += 1
                    self._train()
                self._wait_for_seal()
        except Exception:
            self.sealing.leave()
            raise
        with self.run.storing_the_end():
            checkpointing.upload_missing(self.run, self.workers)
        rows = self.run.history()
        self.world.oracle.has_rows(rows, self.step, "in the result")
        return {"steps": self.step, "state": self.state, "rows": len(rows)}

    def _resume(self) -> None:
        chosen: list[Any] = []
        choose = self.run.checkpoints.choose
        disks = self.world.disks_of(self.workers.processes)

        def noted(fetch: Any) -> Any:
            for process in self._processes():
                process.chose_s = self.world.now_s
            chosen.append(choose(fetch))
            met = any(process.has_met_read_faults for process in self._processes())
            step, manifest = chosen[-1].step or 0, chosen[-1].manifest
            attempt = manifest.attempt if manifest else 0
            self.world.oracle.chosen(step, attempt, disks, met_read_faults=met, rejected=chosen[-1].rejected)
            return chosen[-1]

        upload = self.run.checkpoints.upload_missing

        def uploaded(upload_all: Any) -> Any:
            before = self.world.num_store_faults
            steps = upload(upload_all)
            met = any(process.has_met_read_faults for process in self._processes())
            self.world.oracle.uploaded(disks, self.world.num_store_faults - before + met)
            return steps

        self.world.oracle.watch_retention(self.run.checkpoints, self.plan.keep_every)
        self.run.checkpoints.choose = noted  # type: ignore[method-assign]
        self.run.checkpoints.upload_missing = uploaded  # type: ignore[method-assign]
        checkpointing.resume(self.run, self.workers, lambda folder: self._load(folder, chosen))  # type: ignore[arg-type]
        self.step = chosen[-1].step or 0
        self._saved = chosen[-1].step
        self.world.oracle.resumed(self.step)
        self.world.oracle.has_rows(self.run.history(), self.step, f"resumed at step {self.step}")

    def _processes(self) -> list[Process]:
        return [self.world.current.process, *self.workers.processes]

    def _load(self, folder: Path, chosen: list[Any]) -> None:
        manifest = chosen[-1].manifest
        self.workers.load(str(folder), manifest.attempt, manifest.step)
        data = (folder / "data.pt").read_bytes()
        self.world.oracle.loaded(manifest.step, manifest.attempt, DRIVER, "data", data)
        self.state = state_in(data)

    def _train(self) -> None:
        world, step = self.world, self.step
        world.sleep(world.random.choice(self.plan.paces))
        if any(process.is_dead for process in self.workers.processes):
            raise PartLost(["a rank"])
        attempt = self.run.attempt
        self.state = world.oracle.trained(attempt, step, self.state)
        if step % self.plan.save_every == 0 or step == self.plan.num_steps:
            self._save()
        was_fenced = world.oracle.highest() > attempt
        revoked_s = world.bucket.revoked_s.get(attempt, world.now_s)
        world.oracle.logged(attempt, step, was_fenced=was_fenced, storeless_s=world.now_s - revoked_s)
        self.run.log(step, {"state": self.state, "attempt": attempt})
        self._seal()
        if stop.serve(self.run.local.root, self._save_for_pods, is_over=self._is_over):
            self.run.hand_over(back=True)
            self.world.oracle.taken_back(attempt)
        if self.stop.requested and step < self.plan.num_steps:
            self._save_now()
            raise Stopped

    def _is_over(self) -> bool:
        return self.stop.requested or self.step >= self.plan.num_steps

    def _save(self) -> None:
        self._wait_for_seal()
        self.world.oracle.begun(self.step)
        if not self.run.checkpoints.begin(self.step):
            return
        staged = self.run.checkpoints.staged(self.step)
        self.workers.save_checkpoint(str(staged / "actor"), global_step=self.step)
        staged.mkdir(parents=True, exist_ok=True)
        _write(staged / "data.pt", content(self.run.attempt, self.step, DRIVER, "data", self.state))
        self._unsealed = self.step

    def _seal(self) -> None:
        self._saved = self.sealing.wait(0.0) or self._saved
        if self._unsealed is None:
            return
        step, self._unsealed = self._unsealed, None
        self.sealing.begin(step, lambda: self._seal_step(step))
        if not self.plan.overlap:
            self._wait_for_seal()

    def _seal_step(self, step: int) -> None:
        checkpoints = self.run.checkpoints
        before = checkpoints.num_failed_uploads
        checkpointing.seal(self.run, self.workers, step, self.keep)
        is_in_store = checkpoints.remote is not None and checkpoints.num_failed_uploads == before
        disks = self.world.disks_of(self.workers.processes)
        self.world.oracle.sealed(step, self.run.attempt, disks, is_in_store=is_in_store)

    def _wait_for_seal(self) -> None:
        self._saved = self.sealing.wait() or self._saved

    def _save_now(self) -> int | None:
        self._wait_for_seal()
        if self._saved != self.step:
            self._save()
            self._seal()
            self._wait_for_seal()
            self._saved = self.step
        return self._saved

    def _save_for_pods(self) -> int | None:
        step = self._save_now()
        self.world.oracle.hands_over(self.run.attempt)
        self.run.hand_over()
        return step


def _stop(number: int, frame: Any) -> None:
    """End as the child of `opd.cluster.supervise` does."""
    raise Stopped


def attempt(world: Any) -> None:
    """The driver's main thread."""
    plan, process = world.plan, world.current.process
    signal.signal(signal.SIGTERM, _stop)
    try:
        run = Run.open(
            run_id="r", local_root=plan.local_root, spec={"seed": 1}, spec_hash="h", store_url=plan.store_url, tee=False
        )
    except RunFinished:
        world.oracle.finished()
        return
    process.attempt = run.attempt
    world.oracle.claimed(run.attempt, run.claim.owner.token)
    world.oracle.fence(run, "finish", run.attempt)
    world.oracle.fence(run.summary, "write", run.attempt)
    with run:
        trainer = Trainer(world, run, Workers(world, world.start_ranks(process), run.attempt))
        result = trainer.fit()
        world.oracle.ending(run.attempt)
        run.finish(result)
    world.oracle.finished()
