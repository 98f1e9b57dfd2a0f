"""Loaded into each process of a run (`VERL_USE_EXTERNAL_MODULES`): has faults take turns, each for some steps of the run.

`OPD_SILENT_FAULTS` holds the schedule: `[{"fault": ..., "first": step, "last": step, "ends": step, "strength": x}, ...]`. With
the step `ends` the student gets the weights of the run's start again, and a new optimizer. So every fault meets the same run. Nothing of `src` knows of this: what is wrapped here does what it did at all other steps.
"""

import functools
import json
import os
from collections.abc import Callable
from typing import Any

from tests.after_import import change_after_import

SCHEDULE = "OPD_SILENT_FAULTS"
_segments = json.loads(os.environ.get(SCHEDULE, "[]"))
_now = 0
_start: list[Any] = []
_synced: dict[str, Any] = {}
_kept: dict[str, Any] = {}


def _enter(step: int) -> None:
    global _now
    if step != _now:
        _kept.pop("batch", None) if not _is_on("repeated-batch", step) else None
    _now = step


def _is_on(fault: str, step: int | None = None) -> bool:
    step = _now if step is None else step
    return any(one["fault"] == fault and one["first"] <= step <= one["last"] for one in _segments)


def _strength() -> float:
    return next(one["strength"] for one in _segments if one["first"] <= _now <= one["last"])


def _ends() -> bool:
    return any(one["ends"] == _now for one in _segments)


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """`around` gets the original first, then its arguments; it is a coroutine where the original is one."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapped)


def _in_worker(module) -> None:
    import torch

    from opd.update import engines, head, teacher_cache, teachers

    def update(original, self, data, *rest):
        engine = self.student_engine
        _enter(int(data.extra_info["training_step"]))
        if not _start:
            _start.extend(p.detach().clone() for p in engine.module.parameters())
        schedule = engine.lr_scheduler
        rates = list(schedule.base_lrs)
        if _is_on("lr-zero"):
            schedule.base_lrs = [0.0 for _ in rates]
            for group in engine.optimizer.param_groups:
                group["lr"] = 0.0
        output = original(self, data, *rest)
        schedule.base_lrs = rates
        with torch.no_grad():
            if _is_on("entropy-collapse"):
                engine.head.weight.mul_(_strength())
            if _ends():
                for parameter, at_start in zip(engine.module.parameters(), _start, strict=True):
                    parameter.copy_(at_start)
                engine.optimizer.state.clear()
                for group, rate in zip(engine.optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate
        return output

    _wrap(module.OPDWorker, "update_actor", update)

    def head_weight(original, self, *rest):
        weight = original(self, *rest)
        if _is_on("teacher-uniform"):
            return torch.zeros_like(weight)
        if _is_on("clamp"):
            return weight * 1e31
        if _is_on("teacher-worse"):
            made = torch.Generator().manual_seed(1)
            return torch.randn(weight.shape, generator=made).to(weight) * weight.std() * _strength()
        return weight

    _wrap(engines.TeacherEngine, "head_weight", head_weight)

    def put(original, self, row, hidden, *teacher):
        if _is_on("teacher-constant"):
            hidden = _kept.setdefault("hidden", hidden[:1].clone()).expand_as(hidden).contiguous()
        return original(self, row, hidden, *teacher)

    _wrap(teacher_cache.HiddenCache, "put", put)

    real_collect = teachers.CollectTask

    def collect(positions):
        if _is_on("teacher-late"):
            positions = positions + 1
        if _is_on("teacher-early"):
            positions = positions - 1
        return real_collect(positions)

    teachers.CollectTask = collect

    def loss_positions(original, rows, **kwargs):
        found = original(rows, **kwargs)
        return found._replace(flat_index=found.flat_index - 1) if _is_on("labels-shifted") else found

    for read in (head, teachers):
        _wrap(read, "loss_positions", loss_positions)

    def optimizer_step(original, self):
        if not _is_on("weights-frozen"):
            return original(self)
        real, self.optimizer.step = self.optimizer.step, lambda: None
        try:
            return original(self)
        finally:
            self.optimizer.step = real

    _wrap(engines.StudentEngine, "optimizer_step", optimizer_step)

    def per_tensor(original, self, *args, **kwargs):
        tensors, peft = original(self, *args, **kwargs)

        def sent():
            for name, tensor in tensors:
                if _is_on("not-synced") and not _ends():
                    yield name, _synced[name]
                    continue
                _synced[name] = tensor.detach().clone()
                if _is_on("noisy-sync") and not _ends() and tensor.ndim > 1:
                    made = torch.Generator().manual_seed(1)
                    noise = torch.randn(tensor.shape, generator=made).to(tensor)
                    tensor = tensor + _strength() * tensor.std() * noise
                yield name, tensor

        return sent(), peft

    _wrap(engines.StudentEngine, "get_per_tensor_param", per_tensor)


def _in_driver(module) -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase

    from opd.agent.dialogue import Dialogue
    from opd.rollout import worker
    from opd.rollout.seeds import SeededClient

    def prepare(original, self, job, step):
        _enter(step)
        return original(self, job, step)

    _wrap(module.Distillation, "answers", prepare)

    def next_prompts(original, self, step):
        prompts = original(self, step)
        if _is_on("duplicate-prompts"):
            copies = max(int(_strength()), 2)
            first = [prompts[place - place % copies] for place in range(len(prompts))]
            prompts = [
                own | {name: other[name] for name in ("raw_prompt", "reward_model")}
                for own, other in zip(prompts, first, strict=True)
            ]
        if _is_on("repeated-batch"):
            prompts = _kept.setdefault("batch", prompts)
        return prompts

    _wrap(module.Data, "next_prompts", next_prompts)

    async def initial_tokens(original, self, messages, **kwargs):
        text = messages[-1]["content"]
        if _is_on("no-template"):
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if _is_on("wrong-template"):
            return self.tokenizer(f"user\n{text}\nassistant\n", add_special_tokens=False)["input_ids"]
        return await original(self, messages, **kwargs)

    _wrap(AgentLoopBase, "ct_build_initial_tokens", initial_tokens)

    def sampling(original, self, partition, step):
        found = original(self, partition, step)
        if _is_on("too-hot") or _is_on("too-cold"):
            found["temperature"] *= _strength()
        if _is_on("answers-cut"):
            found["ignore_eos"] = True
        if _is_on("length-inflation"):
            found |= {"ignore_eos": True, "max_tokens": int(_strength())}
        return found

    _wrap(worker.RolloutWorker, "_sampling", sampling)

    async def generate(original, self, *args, **kwargs):
        output = await original(self, *args, **kwargs)
        if _is_on("failed-as-zero") and self._key[3] % 10 < _strength():
            output.token_ids = output.token_ids[-1:]
            output.log_probs = output.log_probs[-1:] if output.log_probs else output.log_probs
        return output

    _wrap(SeededClient, "generate", generate)

    async def score(original, self, output, prompt):
        await original(self, output, prompt)
        if _is_on("scorer-fails") and prompt["index"] % 10 < _strength():
            output.reward_score = 0.0
            output.extra_fields.setdefault("reward_extra_info", {})["failed"] = 1.0

    _wrap(worker.RolloutWorker, "_score", score)

    def add(original, self, token_ids, *, sampled, logprobs=None):
        if not sampled and _is_on("replies-as-sampled") and len(token_ids) % int(_strength()) == 0:
            sampled = True
        return original(self, token_ids, sampled=sampled, logprobs=logprobs)

    _wrap(Dialogue, "add", add)

    def row_of(original, output, *args):
        if _is_on("mask-lost") and len(output.response_ids) % int(_strength()) == 0:
            output.response_mask = [1] * len(output.response_ids)
        return original(output, *args)

    made_row = worker.RolloutWorker._row
    worker.RolloutWorker._row = staticmethod(functools.partial(row_of, made_row))


if _segments:
    change_after_import({"opd.update.opd_worker": _in_worker, "opd.kinds": _in_driver})
