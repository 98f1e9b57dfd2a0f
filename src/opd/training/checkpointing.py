"""Checkpoints of a running trainer: each rank hashes and uploads its shards, the driver seals and prunes."""

from __future__ import annotations

import logging

from omegaconf import DictConfig, open_dict
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker

from opd.runs.manifest import DRIVER_RANK
from opd.runs.run import Run
from opd.runs.shards import ShardReport, upload_shards
from opd.training.seeds import SeededRank

logger = logging.getLogger(__name__)


class ShardUploads:
    """Mixin of workers: hash and upload what this rank saved."""

    rank: int

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def upload_shards(self, step: int, step_dir: str, store_url: str | None) -> ShardReport:
        return upload_shards(rank=self.rank, step=step, step_dir=step_dir, store_url=store_url)


class PPOWorker(SeededRank, ShardUploads, ActorRolloutRefWorker):
    """verl's worker, unchanged but for the uploads: GRPO and evaluation."""


def resume(config: DictConfig, run: Run) -> None:
    """Point verl at the newest complete checkpoint of the run, or at none; says what it chose and what it passed over."""
    decision = run.checkpoints.choose()
    print(decision.describe(), flush=True)
    if decision.path is None:
        return
    with open_dict(config):
        config.trainer.resume_mode = "resume_path"
        config.trainer.resume_from_path = str(decision.path)


def seal(run: Run, worker_group, step: int, config: DictConfig) -> None:
    """After verl has saved `step`: acknowledgements of all ranks, manifest, COMPLETE, retention."""
    folder = str(run.checkpoints.folder(step))
    store_url = run.handle.store_url
    reports = list(worker_group.upload_shards(step=step, step_dir=folder, store_url=store_url))
    reports.append(upload_shards(rank=DRIVER_RANK, step=step, step_dir=folder, store_url=store_url))
    run.checkpoints.finalise(step, reports)
    deleted = run.checkpoints.prune(keep_last=config.run.get("keep_last"), keep_every=config.run.get("keep_every"))
    if deleted:
        logger.info("retention: removed checkpoints of steps %s", deleted)
