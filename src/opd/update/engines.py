"""The engines of a step, in verl's registry under model types of ours: teachers whose weights come and go, and the student."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from verl.utils import tensordict_utils as tu
from verl.workers.engine.base import EngineRegistry

from opd.update.head import HeadLoss
from opd.update.head_engine import HeadEngine
from opd.update.parked import ParkedWeights, local
from opd.update.step_metrics import on_host, over_sequence

TEACHER, STUDENT = "opd_teacher", "opd_student"


@EngineRegistry.register(model_type=TEACHER, backend=["fsdp2"], device=["cuda", "npu"])
class TeacherEngine(HeadEngine):
    """A model that only reads, and waits on the host between its reads if `param_offload` says so."""

    parked: ParkedWeights | None = None
    """The weights, while they may leave the device: a forward brings them."""

    def initialize(self) -> None:
        super().initialize()
        self.set_offload(offload_params=self._is_offload_param)

    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        """Do nothing: weights come with a forward, and leave with `release`."""

    def set_offload(self, *, offload_params: bool, offload_optimizer: bool = False) -> None:
        self._is_offload_param = offload_params
        if offload_params and self.parked is None:
            self.parked = ParkedWeights(self.module, self.device)
        elif not offload_params and self.parked is not None:
            self.parked.unpark()
            self.parked = None

    def release(self) -> None:
        """Let the weights leave the device, if they may, after what was queued before."""
        if self.parked is not None:
            self.parked.release()

    def _build_module(self) -> PreTrainedModel:
        return super()._build_module().requires_grad_(False)

    def _build_optimizer(self, module: PreTrainedModel) -> None:
        return None

    def _build_lr_scheduler(self, optimizer: None) -> None:
        return None

    def load_local_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take this rank's part of each weight, in this teacher's dtype, from `weights` of the same model on as many ranks."""
        for name, part in self.local_weights().items():
            part.copy_(weights[name])

    def head_weight(self) -> Tensor:
        """Return the head [V_T, d_T] on the device in the teacher's dtype (a collective call).

        Where a rank's shard is the whole, the head is that shard, and outlives the other weights on the device.
        """
        if self.parked is not None:
            for unit in self.units:
                unit.reshard()  # verl's `reshard_after_forward: false` leaves a gathered head, which letting go would free
            self.parked.load()
        weight: Any = self.head.weight
        shard = local(weight)
        head: Tensor = shard if shard.shape == weight.shape else weight.full_tensor()
        return head.detach()


@EngineRegistry.register(model_type=STUDENT, backend=["fsdp2"], device=["cuda", "npu"])
class StudentEngine(HeadEngine):
    """The trained model; its head computes the loss inside the forward."""

    num_updates: int = 0
    defer_sync: bool = False
    """Sum gradients unsharded over an update's micro-batches and reduce them once, with the last."""
    keep_gathered: bool = False
    """Gather weights once an update: they stay between its micro-batches."""
    may_be_one_unit = True

    def _build_optimizer(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        config = self.optimizer_config
        if config.optimizer != "AdamW":
            other: torch.optim.Optimizer = super()._build_optimizer(module)
            return other
        return ShardedAdamW(
            module.parameters(),
            lr=config.lr,
            weight_decay=config.weight_decay,
            betas=config.betas,
            fused=self.device.type == "cuda" or None,
            **(config.override_optimizer_config or {}),
        )

    @contextmanager
    def _gradient_sync_context(self, *, is_last_micro_batch: bool) -> Iterator[None]:
        """Set what FSDP gathers and reduces in a micro-batch's forward and backward."""
        keeps, reshards = self.keep_gathered or self.is_one_unit, self.engine_config.reshard_after_forward
        is_last = is_last_micro_batch
        self._set_units(is_last or not self.defer_sync, reshards and not keeps, is_last or not keeps)
        try:
            yield
        finally:
            self._set_units(True, reshards, True)

    def _set_units(self, reduces: bool, frees_after_forward: bool, frees_after_backward: bool) -> None:
        for unit in self.units:  # FSDP's own recursion visits all modules of the model, once a setting
            unit.set_requires_gradient_sync(reduces, recurse=False)
            unit.set_reshard_after_forward(frees_after_forward, recurse=False)
            unit.set_reshard_after_backward(frees_after_backward, recurse=False)

    def forward_step(
        self, micro_batch: TensorDict, loss_function: HeadLoss, forward_only: bool
    ) -> tuple[Tensor, dict[str, Any]]:
        task, output = self.run(micro_batch, loss_function.task)
        # FSDP averages gradients over all ranks, and an update's tokens or rows are counted over those with different rows:
        # one division, here. Each of the ranks that share a sequence has the loss of its own tokens only.
        num_ranks = micro_batch["dp_size"] * self.ulysses_sequence_parallel_size
        divisor = loss_function.divisor(micro_batch)
        loss = output.loss * (num_ranks / max(divisor, 1))
        is_finite = torch.isfinite(loss.detach()) & ~output.statistics["nonfinite"].any().to(loss.device)
        loss = loss * torch.where(is_finite, 1.0, math.nan)  # nan in every gradient: the update is skipped
        metrics = loss_function.metrics(micro_batch, task, output, first_update=self.num_updates == 0)
        return loss, {"model_output": {}, "loss": loss.detach(), "metrics": metrics}

    def train_batch(self, data: TensorDict, loss_function: HeadLoss) -> dict[str, Any]:
        """Make an update; the host reads its counts once, after the optimizer's step has been queued."""
        if loss_function.over_rows:
            num_rows = torch.tensor(sum(bool(mask.any()) for mask in data["loss_mask"].unbind()), device=self.device)
            distributed.all_reduce(num_rows, group=self.get_data_parallel_group())
            tu.assign_non_tensor(data, batch_num_rows=num_rows.item())
        output: dict[str, Any] = super().train_batch(data, loss_function)
        norm = output["metrics"].pop("grad_norm", None)
        read = on_host(output["metrics"] | {"loss": output["loss"]})
        output["loss"] = read.pop("loss")
        if self.use_ulysses_sp:
            read = over_sequence(read, self.ulysses_parallel_group)
        output["metrics"] = read if norm is None else read | {"grad_norm": norm}
        return output

    def optimizer_step(self) -> float:
        """Clip the gradients and step, unless a gradient is not finite; return the norm before."""
        self.num_updates += 1
        if self.scaler is not None:  # of fp16
            scaled: float = super().optimizer_step()
            return scaled
        norm = clip_gradients(self.module.parameters(), self.optimizer_config.clip_grad).item()
        if math.isfinite(norm):
            self.optimizer.step()
        else:
            print(f"WARN: grad_norm is not finite: {norm}")
            self.optimizer.zero_grad()
        return norm


class ShardedAdamW(torch.optim.AdamW):
    """AdamW on the shards, with the state of torch's own: no DTensor operation runs, so a step costs the host a few launches."""

    def _init_group(self, group: dict[str, Any], *of_parameters: list[Tensor]) -> bool:
        has_complex: bool = super()._init_group(group, *of_parameters)
        with torch.no_grad():
            for tensors in of_parameters:
                tensors[:] = map(local, tensors)
        return has_complex


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], most: float) -> Tensor:
    """Scale gradients, all of one mesh, to a norm of at most `most` over all ranks (a collective call); return the norm before."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    shards = [local(gradient) for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(shards)))
    if isinstance(gradients[0], DTensor):
        mesh = gradients[0].device_mesh
        for number, placement in enumerate(gradients[0].placements):
            if placement.is_shard() and mesh.size(number) > 1:
                squared = norm.square()
                distributed.all_reduce(squared, group=mesh.get_group(number))
                norm = squared.sqrt()
    torch._foreach_mul_(shards, (most / (norm + 1e-6)).clamp(max=1.0))
    return norm
