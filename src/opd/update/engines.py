"""verl FSDP engines of ours: a teacher that really loads and offloads, and a student whose head computes the divergence.

Registered behind verl's own `EngineRegistry` under model types of ours, so that everything around them (micro-batching,
gradient accumulation, clipping, the skip of a non-finite step, checkpoints, weight sync) stays verl's.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import psutil
import torch
from peft import PeftModel
from tensordict import TensorDict
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name
from verl.utils.model import convert_weight_keys
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import FSDPEngineConfig
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine.fsdp.utils import unfuse_moe_params
from verl.workers.engine.utils import prepare_micro_batches

from opd.batch import padded_row_starts
from opd.compat import quiet
from opd.compat.loading import buffers_as_read, sharded_before_they_come, stored_dtype
from opd.lora import Adapted, merged, plain_tensors
from opd.update.backbone import compile_layers
from opd.update.counts import Counts, on_host
from opd.update.head import CollectTask, DistillationHead, HeadTask, check_head_is_plain, run_with_task
from opd.update.nonfinite import finite_or_nan
from opd.update.optimizer import ShardedAdamW, clip_gradients
from opd.update.packing import may_pack, own_attention
from opd.update.parked import ParkedWeights, local_shards
from opd.update.step_metrics import over_sequence
from opd.update.ulysses import SHARED, Slice, check_shareable, shared_arguments

quiet.mute(*quiet.IN_RANK)

TEACHER = "opd_teacher"
STUDENT = "opd_student"
MODEL_KEYS = ("input_ids", "position_ids", "use_remove_padding", "temperature", "pad_mode", "pad_token_id")
"""Columns and settings of a micro-batch that verl makes a model's inputs from."""
ONE_UNIT_PARAMS = 300_000_000
"""Parameters up to which FSDP handles a lone rank's model as one unit: its hooks cost the host more than its memory is worth."""


class _HeadEngine(FSDPEngineWithLMHead):
    """verl's engine with a `DistillationHead`, and attention that knows the rows of a pack and that ranks can share a sequence with."""

    engine_config: FSDPEngineConfig
    head: DistillationHead
    is_row_alone: bool = False
    """Rows that share a pack would change each other."""
    _read_s = 0.0

    def initialize(self) -> None:
        began_s = time.monotonic()
        super().initialize()
        if distributed.get_rank() == 0:
            spread_s, age_s = time.monotonic() - began_s - self._read_s, time.time() - psutil.Process().create_time()
            path = self.model_config.path
            print(
                f"start: {path}: {self._read_s:.1f} s to read, {spread_s:.1f} s to spread over the ranks, {age_s:.1f} s since rank 0 began",
                flush=True,
            )

    def _build_module(self) -> PreTrainedModel:
        # verl builds its causal LM for the model type "language_model" only; ours names the engine, not the model.
        own, self.model_config.model_type = self.model_config.model_type, "language_model"
        if self.use_ulysses_sp:
            check_shareable(self.model_config.hf_config, self.ulysses_sequence_parallel_size, self.model_config.path)
        began_s = time.monotonic()
        kept = self.engine_config
        stored = None if self._is_lora else stored_dtype(self.model_config.local_path)
        if stored is not None:
            self.engine_config = dataclasses.replace(kept, model_dtype=PrecisionType.to_str(stored))
        try:
            with buffers_as_read():
                module: PreTrainedModel = super()._build_module()
        finally:
            self.model_config.model_type, self.engine_config = own, kept
        module.config.dtype = self._dtype
        self._read_s = time.monotonic() - began_s
        if self.use_ulysses_sp:
            module.config._attn_implementation = SHARED[module.config._attn_implementation]
        self.head = DistillationHead.replace(module)
        if self.engine_config.use_torch_compile and self.device.type == "cuda":
            compile_layers(module)
        return module

    @property
    def _dtype(self) -> torch.dtype:
        """Of the weights that this engine keeps."""
        dtype: torch.dtype = PrecisionType.to_dtype(self.engine_config.model_dtype)
        return dtype

    def _build_fsdp_module(self, module: PreTrainedModel) -> FSDPModule:
        # Adapters and the model that they adapt differ in dtype, and neither is cast.
        with nullcontext() if self._is_lora else sharded_before_they_come(self._dtype, as_one=self.is_one_unit(module)):
            sharded: FSDPModule = super()._build_fsdp_module(module)
        return sharded

    def is_one_unit(self, module: PreTrainedModel) -> bool:
        """Return True if FSDP gathers and reduces all weights at once."""
        return False

    def _build_lora_module(self, module: PreTrainedModel) -> PeftModel:
        """verl's adapters, drawn from the run's seed, on a model that is kept in the precision it computes in."""
        with torch.random.fork_rng(devices=[]):  # rank 0 draws, on the CPU, and sends
            torch.default_generator.manual_seed(self.engine_config.seed)  # the devices' are every rank's own
            adapted: PeftModel = super()._build_lora_module(module)
        dtype = PrecisionType.to_dtype((self.engine_config.mixed_precision or {}).get("param_dtype", "bf16"))
        for parameter in adapted.parameters():
            if not parameter.requires_grad:  # it is never updated, so it needs no master copy in fp32
                parameter.data = parameter.data.to(dtype)
        return adapted

    def get_per_tensor_param(self, **kwargs: Any) -> tuple[Iterable[tuple[str, torch.Tensor]], dict[str, Any] | None]:
        """verl's weights for the rollout server; of a LoRA student those of the plain model that its adapters make.

        verl's own merged form merges in place into every rank's shards and casts to bf16.
        """
        if not self._is_lora:
            weights: tuple[Iterable[tuple[str, torch.Tensor]], dict[str, Any] | None]
            weights = super().get_per_tensor_param(**kwargs)
            return weights
        stored = self.module.state_dict()
        plain = convert_weight_keys(plain_tensors(stored), self.module)
        return unfuse_moe_params(self._merged(stored, plain), self.model_config.hf_config.model_type), None

    @torch.no_grad()
    def _merged(
        self, stored: Mapping[str, torch.Tensor], plain: Mapping[str, Adapted]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """One whole tensor after another on the device (a collective call)."""
        config = self.module.peft_config["default"]

        def whole(name: str) -> torch.Tensor:
            part = stored[name].to(get_device_id(), non_blocking=True)
            return part.full_tensor() if isinstance(part, DTensor) else part

        for name, (base, down, up) in plain.items():
            if down is None or up is None:
                yield name, whole(base)
            else:
                yield name, merged(whole(base), whole(down), whole(up), scale=config.lora_alpha / config.r)

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """verl's inputs, of this rank's tokens where ranks share a sequence, with what our attention must know of rows."""
        inputs, output_args = super().prepare_model_inputs(micro_batch=micro_batch)
        bounds = micro_batch["input_ids"].offsets()
        if output_args.get("pad_size"):  # its tokens are a row of their own, so that none is attended to
            bounds = torch.cat([bounds, bounds[-1:] + output_args["pad_size"]])
        # A view would tie compiled layers to the shape and offset of what it is a view of.
        inputs["position_ids"] = inputs["position_ids"].clone()
        return inputs | self._row_bounds(bounds, inputs["input_ids"].shape[-1]), output_args

    def _row_bounds(self, bounds: torch.Tensor, num_own_tokens: int) -> dict[str, Any]:
        if not self.use_remove_padding:
            return {}
        name = self.module.config._attn_implementation
        return shared_arguments(name, bounds, num_own_tokens * self.ulysses_sequence_parallel_size)

    @property
    def device(self) -> torch.device:
        """Where this rank computes, wherever its parameters are parked."""
        name = get_device_name()
        return torch.device(name) if name == "cpu" else torch.device(name, get_device_id())

    def autocast(self) -> AbstractContextManager[Any]:
        """The autocast context verl's own `forward_step` uses (none for fp32)."""
        if self._autocast_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device_type=get_device_name(), dtype=self._autocast_dtype)

    def set_offload(self, *, offload_params: bool, offload_optimizer: bool) -> None:
        """Where weights (with gradients) and optimizer state are between this engine's phases, from now on."""
        self._is_offload_param, self._is_offload_optimizer = offload_params, offload_optimizer
        for device, parked in (("cpu", True), (get_device_name(), False)):
            self.to(
                device,
                model=offload_params is parked,
                optimizer=offload_optimizer is parked,
                grad=offload_params is parked,
            )

    def model_inputs(self, micro_batch: TensorDict) -> dict[str, Any]:
        """Return the packed or padded inputs of a micro-batch on the device, by the keys of the model's forward."""
        read = micro_batch.select(*MODEL_KEYS, strict=False).to(get_device_id())
        return self.prepare_model_inputs(micro_batch=read)[0]

    def row_starts(self, micro_batch: TensorDict, inputs: dict[str, Any]) -> torch.Tensor:
        """Return [B] int64 (host), where each row begins in the flattened tokens of the model's input (packed, or right-padded).

        Where ranks share a sequence: in the packed tokens of all of them, of which this one has its `own_slice`.
        """
        offsets: torch.Tensor = micro_batch["input_ids"].offsets().to(torch.int64)
        num_rows, width = inputs["input_ids"].shape
        if not self.use_remove_padding:
            return padded_row_starts(num_rows, width)
        return offsets[:-1].cpu()

    def own_slice(self, inputs: dict[str, Any]) -> Slice | None:
        """This rank's part of the packed tokens; None: it has them all."""
        if not self.use_ulysses_sp:
            return None
        return Slice(
            group=self.ulysses_parallel_group,
            rank=distributed.get_rank(self.ulysses_parallel_group),
            size=self.ulysses_sequence_parallel_size,
            num_tokens=inputs["input_ids"].shape[1],
        )

    @torch.no_grad()
    def read(
        self,
        data: TensorDict,
        task_of: Callable[[TensorDict, torch.Tensor, Slice | None], HeadTask],
        take: Callable[[TensorDict, Any], None],
    ) -> None:
        """One forward of every row without a gradient, micro-batch by micro-batch (a collective call).

        Args:
            data: rows as verl's workers see them.
            task_of: (micro-batch, start of each row in the flattened input [B], this rank's slice of it) -> the task of
                the head.
            take: gets each micro-batch and what its head returned.
        """
        tu.assign_non_tensor(data, sp_size=self.ulysses_sequence_parallel_size)
        micro_batches, _ = prepare_micro_batches(
            data, dp_group=self.get_data_parallel_group(), same_micro_num_in_dp=True
        )
        with self.eval_mode():
            for micro_batch in micro_batches:
                inputs = self.model_inputs(micro_batch)
                task = task_of(micro_batch, self.row_starts(micro_batch, inputs), self.own_slice(inputs))
                task = task.to(self.device)
                with self.autocast():
                    output = run_with_task(self.module, self.head, task, **inputs)
                take(micro_batch, output)

    def local_weights(self) -> dict[str, torch.Tensor]:
        """This rank's part of each weight, by name, as it lies: on the device, or parked on the host."""
        return local_shards(self.module)

    def check(self, name: str) -> None:
        """Refuse a model that this project computes otherwise than the model itself does (a collective call).

        Raises:
            Unfit: the head is more than `hidden @ W.T`, or the attention lacks something.
        """
        with self.eval_mode(), self.autocast(), torch.compiler.set_stance("force_eager"):
            ids = torch.arange(4, device=self.device)
            with own_attention(self.module.config):
                check_head_is_plain(
                    self.module, self.head, name, input_ids=ids[None], position_ids=ids[None], attention_mask=None
                )
            can_pack = may_pack(
                self.module,
                name,
                packed=self._states,
                alone=self._states_alone,
                dtype=self._autocast_dtype,
                agreed=self._agreed,
            )
        self.is_row_alone = not can_pack

    def _states(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the hidden states of rows as a step computes them, of all ranks that share them."""
        nested = {
            "input_ids": torch.nested.as_nested_tensor(list(rows), layout=torch.jagged),
            "position_ids": torch.nested.as_nested_tensor(
                [torch.arange(len(row)) for row in rows], layout=torch.jagged
            ),
        }
        micro_batch = TensorDict(nested, batch_size=len(rows)).to(self.device)
        tu.assign_non_tensor(micro_batch, use_remove_padding=self.use_remove_padding, temperature=1.0)
        inputs = self.model_inputs(micro_batch)
        starts = self.row_starts(micro_batch, inputs)
        places = torch.cat(
            [start + torch.arange(len(row), device=self.device) for start, row in zip(starts, rows, strict=True)]
        )
        own = self.own_slice(inputs)
        if own is None:
            return self._collected(places, inputs)
        mine = self._collected(torch.arange(own.num_tokens, device=self.device), inputs).contiguous()
        parts = [torch.empty_like(mine) for _ in range(own.size)]
        distributed.all_gather(parts, mine, group=own.group)
        return torch.cat(parts)[places]

    def _states_alone(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the hidden states of one row by the model's own attention."""
        places = torch.arange(len(rows[0]), device=self.device)
        inputs = {"input_ids": rows[0][None].to(self.device), "position_ids": places[None], "attention_mask": None}
        with own_attention(self.module.config):
            return self._collected(places, inputs)

    def _collected(self, places: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
        hidden: torch.Tensor = run_with_task(self.module, self.head, CollectTask(places), **inputs)
        return hidden

    def _agreed(self, verdict: bool) -> bool:
        """Return True if all ranks say so."""
        votes = torch.tensor(int(verdict), device=self.device)
        distributed.all_reduce(votes, distributed.ReduceOp.MIN)
        return bool(votes)


@EngineRegistry.register(model_type=TEACHER, backend=["fsdp2"], device=["cuda", "npu"])
class TeacherEngine(_HeadEngine):
    """A model without gradients and optimizer that waits on the host between its reads if `param_offload` says so.

    verl's own forward-only engine is always built with `CPUOffloadPolicy`: its weights stream over PCIe in every
    micro-batch and `param_offload` does nothing. This one is built like a trained model, without gradients; verl's way to offload one of
    those copies weights that have not changed to the host each time, and its forward waits for all of them.
    """

    parked: ParkedWeights | None = None
    """The weights, while they may leave the device."""
    _num_readers = 0

    def initialize(self) -> None:
        super().initialize()
        self.set_offload(offload_params=self._is_offload_param)

    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        """Nothing: weights come and go with `on_device`."""

    def set_offload(self, *, offload_params: bool, offload_optimizer: bool = False) -> None:
        self._is_offload_param = offload_params
        if offload_params and self.parked is None:
            self.parked = ParkedWeights(self.module, self.device)
        elif not offload_params and self.parked is not None:
            self.parked.unpark()
            self.parked = None

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Weights come to the device as a forward needs them, and leave it at the end; what is inside of another does nothing."""
        self._num_readers += 1
        try:
            yield
        finally:
            self._num_readers -= 1
            if self.parked is not None and not self._num_readers:
                self.parked.release()

    @contextmanager
    def eval_mode(self, **kwargs: Any) -> Iterator[None]:
        with self.on_device(), super().eval_mode(**kwargs):
            yield

    def _build_module(self) -> PreTrainedModel:
        return super()._build_module().requires_grad_(False)

    def _build_optimizer(self, module: PreTrainedModel) -> None:
        return None

    def _build_lr_scheduler(self, optimizer: None) -> None:
        return None

    def load_local_weights(self, weights: Mapping[str, torch.Tensor], whose: str) -> None:
        """Take this rank's part of each weight from `weights`, in this teacher's dtype.

        Raises:
            ValueError: names or shapes are not this teacher's; `whose` says which were given.
        """
        own = self.local_weights()
        if {name: part.shape for name, part in own.items()} != {name: part.shape for name, part in weights.items()}:
            raise ValueError(
                f"teacher {self.model_config.path}: {whose} weights have other names or shapes than its own on this rank; a teacher that "
                "is refreshed must be the student's model and be spread over the same ranks"
            )
        for name, part in own.items():
            part.copy_(weights[name])

    def head_weight(self) -> torch.Tensor:
        """Return the head [V_T, d_T] on the device in the teacher's dtype (a collective call).

        Within `on_device`; a lone rank's shard is the whole, which is used where it lies and outlives the other weights there.
        """
        if self.parked is not None:
            for part in self.module.modules():
                if isinstance(part, FSDPModule):
                    part.reshard()  # verl's `reshard_after_forward: false` leaves a gathered head, which letting go would free
            self.parked.load()
        weight: Any = self.head.weight
        if not isinstance(weight, DTensor):
            whole = weight
        else:
            whole = weight.to_local() if weight.device_mesh.size() == 1 else weight.full_tensor()
        head: torch.Tensor = whole.detach()
        return head


@EngineRegistry.register(model_type=STUDENT, backend=["fsdp2"], device=["cuda", "npu"])
class StudentEngine(_HeadEngine):
    """The trained model; with a `DivergenceLoss` as loss function the head computes the loss inside the forward."""

    num_updates: int = 0
    defer_sync: bool = False
    """Sum gradients unsharded over an update's micro-batches and reduce them once, with the last."""
    keep_gathered: bool = False
    """Gather weights once an update: they stay between its micro-batches."""
    _is_one_unit: bool = False
    _units: list[FSDPModule] | None = None
    _unit_settings: tuple[bool, ...] = ()

    def is_one_unit(self, module: PreTrainedModel) -> bool:
        self._is_one_unit = self.device_mesh.size() == 1 and module.num_parameters() <= ONE_UNIT_PARAMS
        return self._is_one_unit

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
        """verl's hook around a micro-batch's forward and backward: what is gathered and reduced in it.

        verl's own context defers the reduction only; weights would still be gathered in every forward and backward.
        """
        keeps = self.keep_gathered or self._is_one_unit
        reshards = self.engine_config.reshard_after_forward
        self._set_units(
            is_last_micro_batch or not self.defer_sync, reshards and not keeps, is_last_micro_batch or not keeps
        )
        try:
            yield
        finally:
            self._set_units(True, reshards, True)

    def _set_units(self, *settings: bool) -> None:
        """Say of each unit whether it reduces gradients, and whether it frees weights after a forward and after a backward.

        FSDP's own recursion visits all modules of the model, once a setting.
        """
        if self._units is None:
            self._units = [part for part in self.module.modules() if isinstance(part, FSDPModule)]
        for unit in self._units if settings != self._unit_settings else ():
            unit.set_requires_gradient_sync(settings[0], recurse=False)
            unit.set_reshard_after_forward(settings[1], recurse=False)
            unit.set_reshard_after_backward(settings[2], recurse=False)
        self._unit_settings = settings

    def forward_backward_batch(
        self, data: TensorDict, loss_function: LossFunction, forward_only: bool = False
    ) -> dict[str, Any]:
        if isinstance(loss_function, HeadLoss) and loss_function.over_rows:
            num_rows = torch.tensor(sum(bool(mask.any()) for mask in data["loss_mask"].unbind()), device=self.device)
            distributed.all_reduce(num_rows, group=self.get_data_parallel_group())
            tu.assign_non_tensor(data, batch_num_rows=num_rows.item())
        output: dict[str, Any] = super().forward_backward_batch(data, loss_function, forward_only)
        return output

    def restart_lr_schedule(self, ends: Sequence[int], *, total_steps: int) -> None:
        """Give each stretch between the steps `ends`, from the first step to the last, a whole learning-rate schedule.

        To be called before a checkpoint is loaded, which brings the number of steps made.
        """
        config, stretches = self.optimizer_config, list(zip([0, *ends], [*ends, total_steps], strict=True))
        factors: list[Callable[[int], float]] = []
        for begin, end in stretches:
            config.total_training_steps = max(end - begin, 1)
            factors.append(self._build_lr_scheduler(self.optimizer).lr_lambdas[0])
        config.total_training_steps = total_steps

        def factor(step: int) -> float:
            number = sum(step >= end for end in ends)
            return factors[number](step - stretches[number][0])

        self.lr_scheduler = LambdaLR(self.optimizer, factor)
        self.checkpoint_manager.lr_scheduler = self.lr_scheduler

    def reset_optimizer(self) -> None:
        """AdamW as it was before its first update: moments and their count at zero, wherever they lie."""
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def forward_step(
        self, micro_batch: TensorDict, loss_function: LossFunction, forward_only: bool
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        if not isinstance(loss_function, HeadLoss):
            other: tuple[torch.Tensor, dict[str, Any]]
            other = super().forward_step(micro_batch.to(get_device_id()), loss_function, forward_only)
            return other
        inputs = self.model_inputs(micro_batch)
        task = loss_function.task(micro_batch, self.row_starts(micro_batch, inputs), self.own_slice(inputs))
        task = task.to(self.device)
        with self.autocast():
            output = run_with_task(self.module, self.head, task, **inputs)
        # FSDP averages gradients over all ranks, and tokens (by verl) or rows are counted over those with different rows: one
        # division, here. Each of the ranks that share a sequence has the loss of its own tokens only.
        num_ranks = micro_batch["dp_size"] * self.ulysses_sequence_parallel_size
        divisor = loss_function.divisor(micro_batch)
        loss = finite_or_nan(output.loss * (num_ranks / max(divisor, 1)), output.statistics["nonfinite"])
        metrics = loss_function.metrics(micro_batch, task, output, first_update=self.num_updates == 0)
        return loss, {"model_output": {}, "loss": loss.detach(), "metrics": metrics}

    def train_batch(self, data: TensorDict, loss_function: LossFunction) -> dict[str, Any]:
        """Make an update; the host reads its counts once, after the optimizer's step has been queued."""
        output: dict[str, Any] = super().train_batch(data, loss_function)
        norm = output["metrics"].pop("grad_norm", None)
        read = on_host(output["metrics"] | {"loss": output["loss"]})
        output["loss"] = read.pop("loss")
        if self.use_ulysses_sp:
            read = over_sequence(read, self.ulysses_parallel_group, self.device)
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


class HeadLoss(abc.ABC):
    """A loss that the student's head computes: its task for a micro-batch, and the counts of the result."""

    over_rows: bool = False
    """`batch_num_rows`, the rows with trained tokens, is noted on every micro-batch."""

    @abc.abstractmethod
    def task(self, micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None) -> Any:
        """Return the head's task; arguments as of `_HeadEngine.read`."""

    @abc.abstractmethod
    def divisor(self, micro_batch: TensorDict) -> float:
        """Return the number, over all ranks, by which the update's sum is divided."""

    @abc.abstractmethod
    def metrics(self, micro_batch: TensorDict, task: Any, output: Any, *, first_update: bool) -> Counts:
        """Return the counts of a micro-batch; the host does not wait for the device."""


LossFunction = HeadLoss | Callable[..., Any] | None
"""Ours, one of verl's own, or none for a forward alone."""
