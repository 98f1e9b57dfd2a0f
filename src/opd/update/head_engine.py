"""verl's FSDP engine with a head that runs tasks, and attention that knows the rows of a pack."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from peft import PeftModel
from tensordict import TensorDict
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name
from verl.utils.model import convert_weight_keys
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import FSDPEngineConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine.fsdp.utils import unfuse_moe_params
from verl.workers.engine.utils import prepare_micro_batches

from opd.batch.rows import padded_row_starts
from opd.compat import quiet, replaced
from opd.compat.loading import buffers_as_read, sharded_before_they_come, stored_dtype
from opd.lora import Adapted, merged, plain_tensors
from opd.memory.sources import is_one_unit
from opd.update.attention import SHARED, Slice, check_shareable, row_arguments
from opd.update.head import AnyTask, CollectTask, DistillationHead, check_head_is_plain, run_with_task, to_device
from opd.update.packing import may_pack
from opd.update.parked import local

quiet.mute(*quiet.IN_RANK)

MAX_GRAPHS = 64
"""Compiled forms of one decoder layer's code in a process, before torch gives up compiling it."""
MODEL_KEYS = ("input_ids", "position_ids", "use_remove_padding", "temperature", "pad_mode", "pad_token_id")
"""Columns and settings of a micro-batch that verl makes a model's inputs from."""
READ = ("input_ids", "position_ids", "opd_row")
"""Columns of rows that an engine reads without a gradient."""
TaskOf = Callable[[TensorDict, Tensor, Slice | None], AnyTask]
"""(micro-batch, start of each row in the flattened input [B], this rank's slice of it) -> the head's task."""


def compile_layers(model: nn.Module) -> int:
    """Compile each decoder layer's forward in place, before FSDP wraps it; return their number.

    Teacher and student share the line of code by which torch counts graphs. Beyond its limit, 8 by default, layers run
    uncompiled, and a layer that was compiled in the forward but not in its recomputation fails.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_GRAPHS)
    names = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)
    return len(layers)


class HeadEngine(FSDPEngineWithLMHead):
    """verl's engine with a `DistillationHead`, and attention that knows rows and that ranks share a sequence with."""

    engine_config: FSDPEngineConfig
    head: DistillationHead
    is_row_alone: bool = False
    """Rows that share a pack would change each other."""
    read_tokens: int | None = None
    """Tokens of a forward without a gradient on this rank, or of its longest row. None means verl's cut."""
    may_be_one_unit = is_one_unit = False
    """FSDP may gather, and gathers, all weights at once."""

    @property
    def device(self) -> torch.device:
        """Return the device where this rank computes."""
        name = get_device_name()
        return torch.device(name) if name == "cpu" else torch.device(name, get_device_id())

    def autocast(self) -> AbstractContextManager[Any]:
        """Return verl's autocast context, none for fp32."""
        if self._autocast_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device_type=get_device_name(), dtype=self._autocast_dtype)

    @cached_property
    def units(self) -> list[FSDPModule]:
        """Return what FSDP gathers at once."""
        return [part for part in self.module.modules() if isinstance(part, FSDPModule)]

    @torch.no_grad()
    def local_weights(self) -> dict[str, Tensor]:
        """Return this rank's shard of each weight by name; the DTensor around a parked one says that it is on the device."""
        weights = self.module.state_dict(keep_vars=True)  # sharded, also where FSDP has gathered
        return {name: local(weight).detach() for name, weight in weights.items()}

    def set_offload(self, *, offload_params: bool, offload_optimizer: bool) -> None:
        """Set where weights, with gradients, and optimizer state are between this engine's phases."""
        self._is_offload_param, self._is_offload_optimizer = offload_params, offload_optimizer
        for device, parked in (("cpu", True), (get_device_name(), False)):
            moves = offload_params is parked
            self.to(device, model=moves, optimizer=offload_optimizer is parked, grad=moves)

    def _build_module(self) -> PreTrainedModel:
        # verl builds its causal LM for the model type "language_model" only; ours names the engine, not the model.
        model, kept = self.model_config, self.engine_config
        if self.use_ulysses_sp:
            check_shareable(model.hf_config, self.ulysses_sequence_parallel_size, model.path)
        stored = None if self._is_lora else stored_dtype(model.local_path)
        read = kept if stored is None else dataclasses.replace(kept, model_dtype=PrecisionType.to_str(stored))
        with replaced(model, model_type="language_model"), replaced(self, engine_config=read), buffers_as_read():
            module: PreTrainedModel = super()._build_module()
        module.config.dtype = PrecisionType.to_dtype(kept.model_dtype)
        if self.use_ulysses_sp:
            module.config._attn_implementation = SHARED[module.config._attn_implementation]
        self.head = DistillationHead.replace(module)
        if self.engine_config.use_torch_compile and self.device.type == "cuda":
            compile_layers(module)
        return module

    def _build_fsdp_module(self, module: PreTrainedModel) -> FSDPModule:
        dtype = PrecisionType.to_dtype(self.engine_config.model_dtype)
        self.is_one_unit = self.may_be_one_unit and is_one_unit(
            module.num_parameters(), num_ranks=self.device_mesh.size(), is_lora=self._is_lora
        )
        # Adapters and the model that they adapt differ in dtype, and neither is cast.
        with nullcontext() if self._is_lora else sharded_before_they_come(dtype, as_one=self.is_one_unit):
            sharded: FSDPModule = super()._build_fsdp_module(module)
        return sharded

    def _build_lora_module(self, module: PreTrainedModel) -> PeftModel:
        """Return the model with verl's adapters, drawn from the run's seed, in the precision it computes in."""
        with torch.random.fork_rng(devices=[]):  # rank 0 draws, on the CPU, and sends
            torch.default_generator.manual_seed(self.engine_config.seed)  # the devices' are every rank's own
            adapted: PeftModel = super()._build_lora_module(module)
        dtype = PrecisionType.to_dtype((self.engine_config.mixed_precision or {}).get("param_dtype", "bf16"))
        for parameter in adapted.parameters():
            if not parameter.requires_grad:  # it is never updated, so it needs no master copy in fp32
                parameter.data = parameter.data.to(dtype)
        return adapted

    def get_per_tensor_param(self, **kwargs: Any) -> tuple[Iterable[tuple[str, Tensor]], dict[str, Any] | None]:
        """Return the weights for the rollout server; a LoRA student's are the plain model's that its adapters make.

        verl's own merged form changes every rank's shards in place and casts to bf16.
        """
        if not self._is_lora:
            weights: tuple[Iterable[tuple[str, Tensor]], dict[str, Any] | None] = super().get_per_tensor_param(**kwargs)
            return weights
        stored = self.module.state_dict()
        plain = convert_weight_keys(plain_tensors(stored), self.module)
        return unfuse_moe_params(self._merged(stored, plain), self.model_config.hf_config.model_type), None

    @torch.no_grad()
    def _merged(self, stored: Mapping[str, Tensor], plain: Mapping[str, Adapted]) -> Iterator[tuple[str, Tensor]]:
        """Yield one whole tensor after another on the device (a collective call)."""
        config = self.module.peft_config["default"]
        for name, parts in plain.items():
            on_device = [stored[part].to(get_device_id(), non_blocking=True) for part in parts if part is not None]
            base, *adapters = [part.full_tensor() if isinstance(part, DTensor) else part for part in on_device]
            yield name, merged(base, *adapters, scale=config.lora_alpha / config.r) if adapters else base

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return verl's inputs with the bounds of rows that our attention needs."""
        inputs, output_args = super().prepare_model_inputs(micro_batch=micro_batch)
        # A view would tie compiled layers to the shape and offset of its base.
        inputs["position_ids"] = inputs["position_ids"].clone()
        if not self.use_remove_padding:
            return inputs, output_args
        bounds = micro_batch["input_ids"].offsets()
        if output_args.get("pad_size"):  # padding is a row of its own, which no other attends to
            bounds = torch.cat([bounds, bounds[-1:] + output_args["pad_size"]])
        num_tokens = inputs["input_ids"].shape[-1] * self.ulysses_sequence_parallel_size
        return inputs | row_arguments(self.module.config._attn_implementation, bounds, num_tokens), output_args

    def run(self, micro_batch: TensorDict, task_of: TaskOf[AnyTask]) -> tuple[AnyTask, Any]:
        """Return the head's task of a micro-batch, on the device, and the head's output."""
        inputs, starts, own = self._inputs(micro_batch)
        task = to_device(task_of(micro_batch, starts, own), self.device)
        with self.autocast():
            return task, run_with_task(self.module, self.head, task, **inputs)

    def _inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], Tensor, Slice | None]:
        """Return the model's inputs of a micro-batch on the device, and the last two arguments of a `TaskOf`."""
        read = micro_batch.select(*MODEL_KEYS, strict=False).to(get_device_id())
        inputs, own = self.prepare_model_inputs(micro_batch=read)[0], None
        shape = inputs["input_ids"].shape
        if self.use_ulysses_sp:
            group, size = self.ulysses_parallel_group, self.ulysses_sequence_parallel_size
            own = Slice(group=group, rank=distributed.get_rank(group), size=size, num_tokens=shape[1])
        packed = micro_batch["input_ids"].offsets()[:-1].to("cpu", torch.int64)
        return inputs, packed if self.use_remove_padding else padded_row_starts(*shape), own

    @torch.no_grad()
    def read(self, data: TensorDict, task_of: TaskOf[AnyTask]) -> Iterator[tuple[TensorDict, AnyTask, Any]]:
        """Yield each micro-batch of rows, its task and the head's output, by forwards without a gradient (a collective call)."""
        config, inputs, num_tokens = self.engine_config, data.select(*READ), self.read_tokens
        if num_tokens is None and config.use_dynamic_bsz:
            num_tokens = config.infer_max_token_len_per_gpu
        most_rows = min(config.infer_micro_batch_size_per_gpu or 1, len(data))
        if self.is_row_alone:
            num_tokens, most_rows = None, 1
        if num_tokens is not None:
            num_tokens = self.at_least_a_row(num_tokens, data)
        tu.assign_non_tensor(
            inputs,
            use_remove_padding=self.use_remove_padding,
            use_dynamic_bsz=num_tokens is not None,
            max_token_len_per_gpu=num_tokens,
            # verl cuts a rank's rows into equal parts, which a last batch may be too short for.
            micro_batch_size_per_gpu=next(size for size in range(most_rows, 0, -1) if len(data) % size == 0),
            sp_size=self.ulysses_sequence_parallel_size,
            temperature=1.0,
        )
        group = self.get_data_parallel_group()
        micro_batches, _ = prepare_micro_batches(inputs, dp_group=group, same_micro_num_in_dp=True)
        with self.eval_mode():
            for micro_batch in micro_batches:
                task, output = self.run(micro_batch, task_of)
                yield micro_batch, task, output

    def at_least_a_row(self, num_tokens: int, data: TensorDict) -> int:
        """Return the tokens, at least the longest row of any rank: verl takes one limit for all (a collective call)."""
        longest = data["input_ids"].offsets().diff().max().to(self.device)
        distributed.all_reduce(longest, distributed.ReduceOp.MAX)
        return max(num_tokens, -(-int(longest) // int(self.ulysses_sequence_parallel_size)))

    def check(self, name: str) -> None:
        """Refuse a model whose head is more than `hidden @ W.T`, or whose attention lacks something (a collective call)."""
        with self.eval_mode(), self.autocast(), torch.compiler.set_stance("force_eager"):
            ids = torch.arange(4, device=self.device)[None]
            with replaced(self.module.config, _attn_implementation="eager"):
                check_head_is_plain(self.module, self.head, name, input_ids=ids, position_ids=ids, attention_mask=None)
            forwards = {"packed": self._states, "alone": self._states_alone}
            self.is_row_alone = not may_pack(self.module, name, dtype=self._autocast_dtype, **forwards)

    def _states(self, rows: Sequence[Tensor]) -> Tensor:
        """Return the hidden states of rows as a step computes them, of all ranks that share them."""
        columns = {"input_ids": list(rows), "position_ids": [torch.arange(len(row)) for row in rows]}
        nested = {name: torch.nested.as_nested_tensor(each, layout=torch.jagged) for name, each in columns.items()}
        micro_batch = TensorDict(nested, batch_size=len(rows)).to(self.device)
        tu.assign_non_tensor(micro_batch, use_remove_padding=self.use_remove_padding, temperature=1.0)
        inputs, starts, own = self._inputs(micro_batch)
        places = torch.cat([start + torch.arange(len(row)) for start, row in zip(starts, rows, strict=True)])
        if own is None:
            return self._collected(places, inputs)
        mine = self._collected(torch.arange(own.num_tokens), inputs).contiguous()
        parts = [torch.empty_like(mine) for _ in range(own.size)]
        distributed.all_gather(parts, mine, group=own.group)
        return torch.cat(parts)[places.to(mine.device)]

    def _states_alone(self, rows: Sequence[Tensor]) -> Tensor:
        """Return the hidden states of one row by the model's own attention."""
        ids, places = rows[0].to(self.device), torch.arange(len(rows[0]), device=self.device)
        with replaced(self.module.config, _attn_implementation="eager"):
            inputs = {"input_ids": ids[None], "position_ids": places[None], "attention_mask": None}
            return self._collected(places, inputs)

    def _collected(self, places: Tensor, inputs: dict[str, Any]) -> Tensor:
        hidden: Tensor = run_with_task(self.module, self.head, CollectTask(places.to(self.device)), **inputs)
        return hidden
