"""Kind `sft`: cross-entropy on given answers, through the trainer of all kinds; nothing is rolled out, scored or served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from opd.compat import verl_trainer
from opd.config import SftSpec
from opd.data.answered import AnsweredRow, answer_row
from opd.runs.headline import VALIDATION_LOSS
from opd.runs.progress import PROGRESS
from opd.trainer.conversations import ConversationDataset
from opd.trainer.dataset import PromptDataset
from opd.trainer.teacher_answers import TeacherAnswers
from opd.trainer.trainer import OrderedTrainer
from opd.worker import counts
from opd.worker.answer_worker import AnswerWorker, reduce, sums

VALIDATION_STEP = 0
"""The step whose draw of a teacher's answers every validation is measured on: its losses are of the same tokens."""


class SftTrainer(OrderedTrainer):
    """Supervised fine-tuning: verl's synchronous trainer whose step begins with rows that are there."""

    _enable_hybrid_replicas = False  # verl then builds the actor alone, and no server
    _rows: dict[str, ConversationDataset | AnsweredPrompts]

    @property
    def _spec(self) -> SftSpec:
        assert isinstance(self.ours.spec, SftSpec)  # `TaskRunner` gives this trainer no other kind
        return self.ours.spec

    def _setup(self) -> None:
        with verl_trainer.no_servers():
            super()._setup()

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        self._set_worker(Role.Actor, AnswerWorker)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self._rows = {"train": self._read(self.train_dataset)}
        if (
            self._spec.trainer.test_freq > 0 or self._spec.trainer.val_before_train
        ):  # a teacher may not have answered the others
            self._rows["val"] = self._read(self.val_dataset)

    def _read(self, dataset: PromptDataset) -> ConversationDataset | AnsweredPrompts:
        if isinstance(dataset, ConversationDataset):
            return dataset
        answers = TeacherAnswers(
            self._spec.sft.teacher_answers or (),
            dataset,
            self.tokenizer,
            seed=self._spec.seed,
            key="sft.teacher_answers",
        )
        return AnsweredPrompts(dataset, answers)

    def on_init_end(self) -> None:
        """There are no servers that wait for weights."""

    def on_step_end(self) -> None:
        """There are no servers that wait for weights."""

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        """One training step; the batch that was trained."""
        indices = [int(index) for index in self._next_train_batch()["index"]]
        batch, num_cut = self._put("train", indices, step=self.global_steps)
        metrics["sft/num_cut"] = float(num_cut)
        batch = self._balance_batch(batch, metrics)
        with marked_timer("update_actor", timing_raw):
            return self._update_actor(batch, metrics)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch.extra_info.update(self.update_settings)
        raw = self.actor_rollout_wg.update_actor(batch)["metrics"]
        metrics.update(reduce(raw))
        self._skipped.see(made=round(metrics["actor/num_updates"]), skipped_last=counts.skipped_last(raw))
        return batch

    def _put(self, partition: str, indices: Sequence[int], *, step: int) -> tuple[KVBatchMeta, int]:
        """Store rows of a data set for the workers; how many of them were cut."""
        rows = [self._rows[partition].row(index, step) for index in indices]
        tags = [
            {
                "status": "success",
                "prompt_len": len(row.prompt),
                "response_len": len(row.response),
                "seq_len": len(row.prompt) + len(row.response),
                "global_steps": step,
                "order": (index, 0, 0),
            }
            for index, row in zip(indices, rows, strict=True)
        ]
        batch = tq.kv_batch_put(
            keys=[f"{partition}_{self.global_steps}_{index}" for index in indices],
            partition_id=partition,
            fields=list_of_dict_to_tensordict([_fields(row) for row in rows]),
            tags=tags,
        )
        return batch, sum(row.is_cut for row in rows)

    def _validate(self) -> dict[str, float]:
        """The loss on the validation rows, over all their trained tokens."""
        PROGRESS.enter("validation", self.global_steps)
        num, at_once = len(self.val_dataset), self._spec.data.train_batch_size
        loss, num_tokens, num_cut = 0.0, 0.0, 0
        for begin in range(0, num, at_once):
            batch, cut = self._put("val", range(begin, min(begin + at_once, num)), step=VALIDATION_STEP)
            batch = PPOTrainerSync._balance_batch(self, batch, {})  # ours would call it a phase of the update
            batch.extra_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
            more = sums(self.actor_rollout_wg.measure_loss(batch)["metrics"])
            loss, num_tokens, num_cut = loss + more[0], num_tokens + more[1], num_cut + cut
            tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
            PROGRESS.tick()
        return {
            VALIDATION_LOSS: loss / max(num_tokens, 1.0),
            "val-aux/num_tokens": num_tokens,
            "val-aux/num_cut": float(num_cut),
            "val-aux/num_overlong_dropped": float(self.val_dataset.num_overlong_dropped),
        }

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        tags = [tag for tag in batch.tags if not tag.get("is_padding", False)]
        metrics |= {
            "training/global_step": global_steps,
            "training/epoch": epoch,
            "sft/num_rows": float(len(tags)),
            "response_length/mean": sum(tag["response_len"] for tag in tags) / len(tags),
            "response_length/max": float(max(tag["response_len"] for tag in tags)),
            "data/num_overlong_dropped": float(self.train_dataset.num_overlong_dropped),
            **{f"timing_s/{name}": seconds for name, seconds in timing_raw.items()},
            **self.pace(tags, timing_raw.get("step", 0.0)),
        }


class AnsweredPrompts:
    """Prompts with a teacher's answers: each step takes the answer that seed, step and prompt draw."""

    def __init__(self, dataset: PromptDataset, answers: TeacherAnswers) -> None:
        self._dataset, self._answers = dataset, answers

    def row(self, index: int, step: int) -> AnsweredRow:
        dataset = self._dataset
        [answer] = self._answers.of(index, step=step, num_samples=1)
        messages = dataset.dataframe[index][dataset.prompt_key]
        row = answer_row(dataset.tokenizer, messages, answer, **dataset.template_kwargs)
        return row.cut(int(dataset.config.max_response_length))


def _fields(row: AnsweredRow) -> dict[str, torch.Tensor]:
    """A row in the layout that verl's workers read."""
    prompt, response, mask = (torch.tensor(part, dtype=torch.int64) for part in (row.prompt, row.response, row.mask))
    input_ids = torch.cat([prompt, response])
    return {
        "prompts": prompt,
        "responses": response,
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": input_ids,
        "position_ids": torch.arange(len(input_ids)),
    }
