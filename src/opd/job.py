"""Everything that a run trains with, built once: data, ranks, rollout servers, trackers."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import (
    RayClassWithInitArgs,
    RayWorkerGroup,
    ResourcePoolManager,
    create_colocated_worker_cls,
)
from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
from verl.utils.config import omega_conf_to_dataclass

from opd.compat.plain_loads import plain_loads
from opd.experiment import SftSpec
from opd.experiment.run_config import KEY, RunConfig
from opd.monitor.monitor import Monitor
from opd.rollout.batches import Prompt
from opd.rollout.manager import RolloutManager
from opd.rollout.rows import Row, share_out
from opd.rollout.serving import InProcessClient, start_with_models
from opd.runs import origin
from opd.runs.manifest import DATA_FILE
from opd.runs.run import Run
from opd.trainer import checkpointing
from opd.trainer.dataset import PromptDataset
from opd.trainer.run_log import StepLogger
from opd.trainer.tracking import Trackers


class Data:
    """Tokenizer and data sets of a run.

    Attributes:
        total_steps: of the run, once `begin` was called. steps_per_epoch: passes over the training prompts.
    """

    total_steps: int
    steps_per_epoch: int

    def __init__(self, config: DictConfig) -> None:
        self.config, self.ours = config, RunConfig.of(config)
        model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        self.tokenizer, self._processor = model.tokenizer, model.processor
        self.train = self._read("train", {"split": self.ours.spec.data.split.model_dump(exclude_none=True)})
        self.val = self._read("val", {})
        self._rows: Iterator[list[Prompt]] | None = None

    def _read(self, part: str, settings: Mapping[str, Any]) -> PromptDataset:
        data = self.config.data.copy()
        with open_dict(data):
            data.update(settings)
        dataset: PromptDataset = create_rl_dataset(
            data[f"{part}_files"],
            data,
            self.tokenizer,
            self._processor,
            is_train=part == "train",
            max_samples=data.get(f"{part}_max_samples", -1),
        )
        return dataset

    def begin(self) -> None:
        """Fix the order of the training prompts, and with it the number of steps; from now on no prompt may leave.

        The optimizers' schedules end with the last step, which verl's workers read from their config as they start.

        Raises:
            SpecError: a step draws more prompts than there are.
        """
        trainer, batch_size = self.config.trainer, int(self.config.data.train_batch_size)
        self.train.check_fills(batch_size, self.ours.spec.data.split)
        self.loader = StatefulDataLoader(
            dataset=self.train,
            batch_size=batch_size,
            num_workers=self.config.data.dataloader_num_workers,
            drop_last=True,
            collate_fn=list,
            sampler=create_rl_sampler(self.config.data, self.train),
        )
        self.steps_per_epoch = len(self.train) // batch_size
        self.total_steps = int(trainer.total_training_steps or self.steps_per_epoch * trainer.total_epochs)
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.optim.total_training_steps = self.total_steps

    def next_prompts(self, step: int) -> list[Prompt]:
        """Draw the next prompts of the training data, as many as a step has."""
        rows = next(self._rows, None) if self._rows is not None else None
        while rows is None:  # twice for a run that resumes at the end of an epoch: the first iterator has no rows left
            self._rows = iter(self.loader)
            rows = next(self._rows, None)
        return [row | {"uid": f"{step}/{place}"} for place, row in enumerate(rows)]

    def validation_batches(self) -> Iterator[list[Prompt]]:
        """Yield the validation prompts in their order, `data.val_batch_size` at once."""
        num = len(self.val)
        size = self.config.data.val_batch_size or num
        for begin in range(0, num, size):
            yield [self.val[place] | {"uid": str(place)} for place in range(begin, min(begin + size, num))]

    def epoch(self, step: int) -> int:
        """Return the passes over the training prompts that ended before a step."""
        return (step - 1) // self.steps_per_epoch


class Job:
    """The processes of a run, and what reaches them.

    Args:
        config: verl's, resolved.
        run: the attempt.
        data: that `Data.begin` was called on.
        worker: class of the ranks. role: verl's name of what a rank holds.
        serves: whether rollout servers answer prompts. cpu_servers: those that start already.
    """

    def __init__(
        self,
        config: DictConfig,
        run: Run,
        data: Data,
        *,
        worker: type,
        role: str,
        serves: bool,
        cpu_servers: Mapping[str, Any],
    ) -> None:
        self.config, self.run, self.data, self.ours = config, run, data, data.ours
        self.num_ranks = int(config.trainer.nnodes * config.trainer.n_gpus_per_node)
        self.rollouts: RolloutManager | None = None
        self._serves = serves
        run.summary.total_steps = data.total_steps
        # Handles found by name, as verl's are, do not keep an actor alive: these are held to the end.
        self._cpu_servers = cpu_servers
        self.pool, self.ranks = start_ranks(config, worker, role)
        replicas = self._load_models(role, serves=serves)
        engine = omega_conf_to_dataclass(config.actor_rollout_ref.rollout.checkpoint_engine)
        engine.backend = "naive"  # the ranks hand their weights to the servers on their own devices
        self._weights = CheckpointEngineManager(config=engine, actor_wg=self.ranks, replicas=replicas)
        trackers = Trackers(config, run)
        devices = Counter(self.ranks.tell_device())
        origin.add(run.stores[0], run.attempt, devices=devices, trackers=trackers.links)
        watch = Monitor(run.stores).see if data.ours.trained.trainer.monitor else None
        self.log = StepLogger(run, trackers, total_steps=data.total_steps, watch=watch)

    def _load_models(self, role: str, *, serves: bool) -> list[Any]:
        """Have the ranks load their models, and start rollout servers and workers; return the servers' replicas."""
        if not serves:
            self.ranks.init_model()
            if not isinstance(self.ours.spec, SftSpec):  # given answers become rows without a server
                self.rollouts = RolloutManager(self.config, InProcessClient(self.config, {}))
            return []
        servers = start_with_models(self.config, self.ranks, role=role, pool=self.pool)
        self.rollouts = RolloutManager(self.config, servers.get_client())
        replicas: list[Any] = servers.get_replicas()
        return replicas

    @functools.cached_property
    def num_groups(self) -> int:
        """Return the ranks with different rows."""
        ranks: Any = self.ranks
        ranks._dispatch_info.setdefault("actor", ranks._query_dispatch_info("actor"))
        return int(max(ranks._dispatch_info["actor"])) + 1

    def call_ranks(self, method: str, rows: Sequence[Row], **settings: Any) -> tuple[Any, dict[str, float]]:
        """Give every rank its part of the rows in one dispatch, filled up to whole updates.

        Args:
            settings: values that every rank gets with its part, in addition to verl's of how a step is cut into updates.

        Returns:
            The lists of counts that the ranks' method returns, and metrics of how evenly the rows were shared out.
        """
        config = self.config.actor_rollout_ref
        mini_batch = config.actor.ppo_mini_batch_size * config.rollout.n
        settings = {
            "global_batch_size": mini_batch,
            "mini_batch_size": mini_batch,
            "epochs": config.actor.ppo_epochs,
            "seed": config.actor.data_loader_seed,
            "dataloader_kwargs": {"shuffle": config.actor.shuffle},
            "temperature": config.rollout.temperature,
        } | settings
        batch, metrics = share_out(
            rows,
            num_ranks=self.num_groups,
            multiple_of=mini_batch,
            eos_token_id=self.data.tokenizer.eos_token_id,
            settings=settings,
        )
        return getattr(self.ranks, method)(batch)["metrics"], metrics

    def send_weights(self, step: int) -> None:
        """Wake the servers up with the ranks' weights, as the weights of a step."""
        if self._serves:
            self._weights.update_weights(step)

    def let_servers_sleep(self) -> None:
        """Have the servers free their devices for the ranks."""
        self._weights.sleep_replicas()

    def save(self, step: int) -> Path:
        """Save models, optimizers and the place in the data where the run stages a step; return the folder."""
        folder = self.run.checkpoints.staged(step)
        self.ranks.save_checkpoint(str(folder / "actor"), global_step=step)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.data.loader.state_dict(), folder / DATA_FILE)
        return folder

    def resume(self, load_more: Callable[[Path], None]) -> int:
        """Load the newest checkpoint of the run that can be loaded; return its step, 0 where the run begins.

        Args:
            load_more: loads what the kind has saved in the same folder.
        """
        self.let_servers_sleep()
        if self.data.ours.trained.trainer.resume == "never":
            return 0

        def load(folder: Path) -> None:
            self.ranks.load_checkpoint(local_path=str(folder / "actor"))
            with plain_loads():
                self.data.loader.load_state_dict(torch.load(folder / DATA_FILE, weights_only=True))
            load_more(folder)

        # The ranks exist and nothing is loaded yet: each can bring its files to the disk that it reads.
        return checkpointing.resume(self.run, self.ranks, load)


def start_ranks(config: DictConfig, worker: type, role: str) -> tuple[Any, RayWorkerGroup]:
    """Return the pool of devices, and the group of its processes, one a device."""
    trainer = config.trainer
    OmegaConf.update(config, f"actor_rollout_ref.{KEY}", config[KEY], force_add=True)
    pools = ResourcePoolManager(
        resource_pool_spec={"global_pool": [trainer.n_gpus_per_node] * trainer.nnodes}, mapping={role: "global_pool"}
    )
    pools.create_resource_pool()
    pool = pools.get_resource_pool(role)
    of_rank = RayClassWithInitArgs(
        cls=ray.remote(worker),
        config=config.actor_rollout_ref,
        distillation_config=config.get("distillation"),
        role=role,
    )
    port = RunConfig.of(config).spec.trainer.master_port
    group = RayWorkerGroup(
        resource_pool=pool,
        ray_cls_with_init=create_colocated_worker_cls({role: of_rank}),
        device_name=trainer.device,
        # Of torch's rendezvous, on rank 0's node; a taken port is an error there.
        master_port_range=None if port is None else [port, port + 1],
    )
    return pool, group.spawn(prefix_set={role})[role]
