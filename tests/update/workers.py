"""Runs the real OPD worker (engines, FSDP2, gloo) on one or two ranks without Ray, on rows made by the test."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import pickle
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch._functorch.config as functorch
from tensordict import TensorDict
from tests.ports import free_ports
from tests.rank_end import leave
from torch.utils._python_dispatch import TorchDispatchMode

import opd

ROOT = Path(__file__).resolve().parents[2]
# Metrics of a part of the tokens or weights, which depends on how many ranks there are, or of a difference of near numbers.
NOT_COMPARED = (
    "opd/weight_change", "opd/teacher_prefers_neighbour", "opd/teacher_pairs", "opd/teacher_preference", "opd/surprise_gap",
    "opd/teacher_entropy_std",
)  # fmt: skip


class NoRollout:
    """verl's worker builds a rollout; an update never asks it for anything (on a GPU, where `opd.compat.cpu` has none)."""

    def __init__(self, **kwargs: Any) -> None:
        pass


class Collectives(TorchDispatchMode):
    """Counts torch.distributed's operations by name while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in ("c10d", "_c10d_functional"):
            self.counts[func.__name__] += 1
        return func(*args, **(kwargs or {}))


@dataclass(kw_only=True)
class Case:
    """One update: the model pair, how the global batch is cut, Hydra overrides, keys of the spec, facts."""

    student: str
    teacher: str
    rows: list[dict[str, Any]]
    micro_batch: int = 8
    mini_batch: int | None = None
    remove_padding: bool = True
    overrides: list[str] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    facts: dict[str, int] = field(default_factory=lambda: {"valid_vocab": 61})
    device: str = "cpu"
    method: str = "update"
    num_steps: int = 1
    first_step: int | None = None
    """The training step of the first of them; None: as for a worker that is not told."""
    shown: tuple[int, ...] = ()
    """Rows whose tokens are asked for one by one; the result's `seen` is what all ranks tell."""
    teachers: dict[str, str] = field(default_factory=dict)
    """Several teachers by name in the place of `teacher`; a row's own is its `teacher`, a number in the order of names."""
    saves_to: str = ""
    """Folder `global_step_N` of a checkpoint that is saved before the last step."""
    saves_beside: bool = False
    """It is written from copies, once the last step has changed what was copied."""
    resumes_from: str = ""
    """Such a folder: only the last step is made, from there."""
    nan_teacher: bool = False
    """The teacher answers nan for the rows of the last rank."""


def nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def row(prompt: list[int], response: list[int], mask: list[int] | None = None, weight: float = 1.0) -> dict[str, Any]:
    """One rollout row as plain lists; `mask` 1 = model token."""
    return {"prompt": prompt, "response": response, "mask": mask or [1] * len(response), "weight": weight, "teacher": 0}


def tensordict(rows: list[dict[str, Any]], first: int = 0) -> TensorDict:
    """Rows in the layout verl's V1 workers get; `first` is the number of the first of them in the global batch."""
    prompts = [torch.tensor(r["prompt"]) for r in rows]
    responses = [torch.tensor(r["response"]) for r in rows]
    masks = [torch.tensor(r["mask"]) for r in rows]
    inputs = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    own = {}
    if any("teacher_prompt" in r for r in rows):
        own["teacher_prompts"] = nested([torch.tensor(r.get("teacher_prompt", r["prompt"])) for r in rows])
    return TensorDict(
        own
        | {
            "prompts": nested(prompts),
            "responses": nested(responses),
            "response_mask": nested(masks),
            "loss_mask": nested(masks),
            "input_ids": nested(inputs),
            "position_ids": nested([torch.arange(len(ids)) for ids in inputs]),
            "rollout_log_probs": nested([-r / 10 for r in responses]),  # any: a token's own, so that none is mistaken
            "sample_weights": torch.tensor([r["weight"] for r in rows]),
            "row_id": torch.arange(first, first + len(rows)),
            "teacher": torch.tensor([r["teacher"] for r in rows]),
            "advantage": torch.tensor([r.get("advantage", 0.0) for r in rows]),
        },
        batch_size=len(rows),
    )


def config(case: Case, kind: str = "opd"):
    """What verl gives the worker of a run; a spec's rules do not count, so that what they keep from it is tried too."""
    from omegaconf import OmegaConf

    from opd.experiment import load_text
    from opd.experiment.run_config import KEY, RunFacts
    from opd.trainer.entry import compose

    sets = [
        f"device={case.device}",
        f"model.path={case.student}",
        "model.attn_implementation=sdpa",
        *(_teachers(case) if kind == "opd" else ()),
        *(("data.train=[train.parquet]", "data.val=[val.parquet]") if kind == "sft" else ()),
        "data.train_batch_size=8",
        "data.max_prompt_length=16",
        "data.max_response_length=16",
        "actor.dtype=fp32",
        "actor.learning_rate=1e-3",
        "actor.torch_compile=false",
        "actor.gradient_checkpointing=false",
        "actor.param_offload=false",
        "actor.optimizer_offload=false",
        f"actor.use_remove_padding={case.remove_padding}",
        "actor.ppo_mini_batch_size=8",
        f"actor.ppo_micro_batch_size_per_gpu={case.micro_batch}",
        f"actor.log_prob_micro_batch_size_per_gpu={case.micro_batch}",
        f"trainer.gpus_per_node={os.environ['WORLD_SIZE']}",
        *case.sets,
    ]
    role = "actor_rollout_ref"
    overrides = [f"{role}.actor.optim.total_training_steps=10", *case.overrides]
    with patch("opd.experiment.parse.check", return_value=[]):
        spec = load_text(f"kind: {kind}", sets=sets, overrides=overrides).spec
    composed = compose(spec, RunFacts(run_id="r", run_dir="out/r", **case.facts))
    if case.device != "cpu":
        composed.actor_rollout_ref.rollout.name = "none"
    OmegaConf.update(composed, f"{role}.{KEY}", composed[KEY], force_add=True)
    OmegaConf.resolve(composed)
    return composed.actor_rollout_ref


def _teachers(case: Case) -> list[str]:
    if not case.teachers:
        return [f"teacher.path={case.teacher}", "teacher.dtype=fp32", "teacher.offload=true"]
    return [
        f"teachers.{name}.{key}={value}"
        for name, path in case.teachers.items()
        for key, value in {"path": path, "dtype": "fp32", "offload": "true"}.items()
    ] + [f"route.to={{{', '.join(f'{name}: {name}' for name in case.teachers)}}}"]


def cut_into_mini_batches(data: TensorDict, mini_batch: int) -> None:
    """Notes on the rows what the trainer's driver does: mini-batches of so many rows, one epoch, in order."""
    from verl.utils import tensordict_utils as tu

    tu.assign_non_tensor(
        data,
        global_batch_size=mini_batch,
        mini_batch_size=mini_batch,
        epochs=1,
        seed=1,
        dataloader_kwargs=tu.NonTensorData({"shuffle": False}),
        temperature=1.0,
    )


def run_case(case: Case) -> dict[str, Any]:
    """One fresh worker, one `update_opd` over this rank's share of the rows: reduced metrics, weights, places of the backbones."""
    from verl.utils import tensordict_utils as tu

    from opd.update import shards
    from opd.update import step_metrics as step_counts
    from opd.update.opd_worker import OPDWorker
    from opd.update.token_view import Seen

    torch.manual_seed(0)
    worker = OPDWorker(config=config(case), role="actor_rollout_ref")
    worker.init_model()
    engine = worker.student_engine
    per_rank, index = len(case.rows) // engine.get_data_parallel_size(), engine.get_data_parallel_rank()
    data = tensordict(case.rows[index * per_rank : (index + 1) * per_rank], index * per_rank)
    cut_into_mini_batches(data, case.mini_batch or len(case.rows))
    tu.assign_non_tensor(data, shown_rows=case.shown)
    gradients, places = _keep_gradients(worker.student_engine), _note_places(worker)
    if case.resumes_from:
        worker.load_checkpoint(f"{case.resumes_from}/actor")
    for number in range(0 if case.resumes_from else case.num_steps - 1):
        _tell_step(data, case, number)
        worker.update_opd(data.clone())
    left: list[Callable[[], None]] = []
    if case.saves_to and case.saves_beside:
        with patch.object(shards, "Job", lambda call, name: left.append(call)):
            worker.copy_next_save()
            worker.save_checkpoint(f"{case.saves_to}/actor", global_step=case.num_steps - 1)
        assert not list(Path(case.saves_to).rglob("*.pt"))
    elif case.saves_to:
        worker.save_checkpoint(f"{case.saves_to}/actor", global_step=case.num_steps - 1)
    _tell_step(data, case, case.num_steps - 1)
    before = _weights(worker)
    with Collectives() as collectives, _nan_from_teacher(case):
        output = worker.update_opd(data)
    for write in left:
        write()
    nonfinite_rows = [worker.read_nonfinite_rows()] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(nonfinite_rows, nonfinite_rows[0])
    seen: list = [worker.read_token_view() if case.shown else Seen()] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(seen, seen[0])
    weights = _weights(worker)
    # Of the ranks that share a sequence one speaks for all.
    mode = worker.opd.loss_agg_mode
    metrics = {} if output is None else {"metrics": step_counts.reduce(tu.get(output, "metrics"), loss_agg_mode=mode)}
    return metrics | {
        "weights": weights,
        "weights_before": before,
        "teacher_weights": _weights(worker, worker.readers[0]),
        "buffers": {
            name: {key: buffer.cpu() for key, buffer in one.module.named_buffers()}
            for name, one in (("student", engine), ("teacher", worker.readers[0]))
        },
        "served": {
            name: weight.cpu() for name, weight in engine.get_per_tensor_param(base_sync_done=True)[0]
        },  # what the rollout server gets
        "has_moved": any(not torch.equal(before[name], weights[name]) for name in weights),
        "nonfinite_rows": nonfinite_rows,
        "seen": Seen.of_ranks(seen),
        "gradients": gradients,
        "places": places | {"done": _places(worker)},
        "activation_budget": functorch.activation_memory_budget,
        "checkpointing": worker.student_engine.module.is_gradient_checkpointing,
        "collectives": dict(collectives.counts),
        "choice": None if worker.plan is None else dataclasses.asdict(worker.plan.choice),
    }


def _places(worker) -> dict[str, str]:
    """Where the weights of either backbone are now: on the device, or parked on the host by its engine."""
    engines = {"teacher": worker.readers[0], "student": worker.student_engine}
    return {
        name: "device" if engine.mode is not None or not engine.is_param_offload_enabled else "offloaded"
        for name, engine in engines.items()
    }


def _note_places(worker) -> dict[str, dict[str, str]]:
    """Filled with `_places` as they were when the teacher, and when the student, last began to read a micro-batch."""
    noted: dict[str, dict[str, str]] = {}
    for name, engine in (("teacher", worker.readers[0]), ("student", worker.student_engine)):
        engine.module.register_forward_pre_hook(lambda *_, name=name: noted.update({name: _places(worker)}))
    return noted


def _tell_step(data: TensorDict, case: Case, number: int) -> None:
    from verl.utils import tensordict_utils as tu

    if case.first_step is not None:
        tu.assign_non_tensor(data, training_step=case.first_step + number)


def _weights(worker, engine=None) -> dict[str, torch.Tensor]:
    """Of the student, or of another engine of the worker's."""
    engine = engine or worker.student_engine
    parked = getattr(engine, "parked", None)
    with nullcontext() if parked is None else engine.on_device():
        if parked is not None:
            parked.load()
        return {
            name: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().cpu().clone()
            for name, p in engine.module.state_dict().items()
        }


@contextmanager
def _nan_from_teacher(case: Case) -> Iterator[None]:
    from opd.update.teacher_cache import HiddenCache

    put, is_last = HiddenCache.put, torch.distributed.get_rank() == torch.distributed.get_world_size() - 1

    def poisoned(cache, row, hidden):
        put(cache, row, hidden * torch.nan if is_last and case.nan_teacher else hidden)

    HiddenCache.put = poisoned
    try:
        yield
    finally:
        HiddenCache.put = put


def told_log_probs(response: torch.Tensor, whose: str) -> torch.Tensor:
    """Log-probabilities of a response's tokens that a test gives in the place of what a model reads."""
    return {"old": -2.0 - response / 50, "reference": -2.5 + response / 50}[whose]


def run_policy_case(case: Case) -> dict[str, Any]:
    """One fresh worker of GRPO: what actor and reference read, then one update with old and reference log-probabilities of the test."""
    from verl.utils import tensordict_utils as tu

    from opd.batch import rows_from_batch
    from opd.update import policy_worker
    from opd.update.policy_worker import PolicyWorker, reduce
    from opd.update.student import numbered

    torch.manual_seed(0)
    worker = PolicyWorker(config=config(case, "grpo"), role="actor_rollout_ref")
    worker.init_model()
    engine = worker.student_engine
    per_rank, index = len(case.rows) // engine.get_data_parallel_size(), engine.get_data_parallel_rank()
    data = numbered(tensordict(case.rows[index * per_rank : (index + 1) * per_rank]))
    data["advantages"] = nested([torch.sin(r.float()) for r in data["responses"].unbind()])
    rows = rows_from_batch(data)
    read = {
        "actor": worker._read(data, rows, worker.actor),
        "ref": worker._read_reference(data, rows),
    }
    pairs = list(zip(data["responses"].unbind(), data["response_mask"].unbind(), strict=True))

    def told(whose: str) -> torch.Tensor:
        return torch.cat([told_log_probs(response, whose)[mask.bool()].float() for response, mask in pairs])

    cut_into_mini_batches(data, case.mini_batch or len(case.rows))
    gradients = _keep_gradients(engine)
    with (
        patch.object(worker, "_read", lambda *_: told("old")),
        patch.object(worker, "_read_reference", lambda *_: told("reference")),
        patch.object(policy_worker, "num_updates", lambda *_: 2),
    ):
        output = worker.update_policy(data)
    # Of the ranks that share a sequence one speaks for all.
    metrics = {} if output is None else reduce(tu.get(output, "metrics"))
    return {"log_probs": read, "gradients": gradients, "update": metrics}


def run_policy_steps(case: Case) -> dict[str, Any]:
    """One fresh worker of GRPO that makes whole steps; saved before the last one, or resumed there."""
    from verl.utils import tensordict_utils as tu

    from opd.batch import rows_from_batch
    from opd.update.policy_worker import PolicyWorker, reduce
    from opd.update.student import numbered

    torch.manual_seed(0)
    worker = PolicyWorker(config=config(case, "grpo"), role="actor_rollout_ref")
    worker.init_model()
    data = numbered(tensordict(case.rows))
    data["advantages"] = nested([torch.sin(r.float()) for r in data["responses"].unbind()])
    cut_into_mini_batches(data, case.mini_batch or len(case.rows))
    if case.resumes_from:
        worker.load_checkpoint(f"{case.resumes_from}/actor")
    for _ in range(0 if case.resumes_from else case.num_steps - 1):
        worker.update_policy(data.clone())
    if case.saves_to:
        worker.save_checkpoint(f"{case.saves_to}/actor", global_step=case.num_steps - 1)
    before = _weights(worker)
    reference = worker._read_reference(data, rows_from_batch(data))
    metrics = reduce(tu.get(worker.update_policy(data.clone()), "metrics"))
    return {"update": metrics, "weights_before": before, "weights": _weights(worker), "reference": reference}


def run_answer_case(case: Case) -> dict[str, Any]:
    """One fresh worker of supervised fine-tuning: the loss measured without a gradient, then one update."""
    from verl.utils import tensordict_utils as tu

    from opd.update.answer_worker import AnswerWorker, reduce, sums

    torch.manual_seed(0)
    worker = AnswerWorker(config=config(case, "sft"), role="actor")
    worker.init_model()
    engine = worker.actor.engine
    per_rank, index = len(case.rows) // engine.get_data_parallel_size(), engine.get_data_parallel_rank()
    data = tensordict(case.rows[index * per_rank : (index + 1) * per_rank])
    asked = data.clone()
    tu.assign_non_tensor(asked, temperature=1.0)
    measured = worker.measure_loss(asked)
    cut_into_mini_batches(data, case.mini_batch or len(case.rows))
    gradients, before = _keep_gradients(engine), _weights(worker, engine)
    output = worker.update_actor(data)
    found: dict[str, Any] = {
        "gradients": gradients,
        "weights_before": before,
        "has_rollout": worker.rollout is not None,
    }
    if output is not None:  # of the ranks that share a sequence one speaks for all
        loss, num_tokens = sums(tu.get(measured, "metrics"))
        metrics = reduce(tu.get(output, "metrics"))
        found |= {
            "measured": loss / num_tokens,
            "update": {name.removeprefix("actor/"): value for name, value in metrics.items()},
        }
    return found


def _keep_gradients(engine) -> dict[str, torch.Tensor]:
    """Filled with the last update's whole gradients, as they are before clipping and the optimizer."""
    kept: dict[str, torch.Tensor] = {}
    step = engine.optimizer_step

    def keeping() -> float:
        for name, parameter in engine.module.named_parameters():
            gradient = parameter.grad
            if gradient is None:  # frozen
                continue
            kept[name] = (
                (gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient).detach().cpu().clone()
            )
        return step()

    engine.optimizer_step = keeping
    return kept


_IMPORTED = [
    "verl",
    "opd.trainer.entry",
    *(f"opd.update.{name}" for name in ("opd_worker", "policy_worker", "answer_worker")),
]


def _main(rank: int, world: int, port: int, folder: str) -> None:
    cases = pickle.loads((Path(folder) / "cases.pkl").read_bytes())
    local = rank if cases[0].device == "cuda" else 0
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(local), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    import verl  # noqa: F401

    gc.freeze()  # what was imported outlives every case; each worker's start collects all garbage twice
    if cases[0].device == "cuda":
        from verl.workers.rollout import base

        torch.cuda.set_device(local)
        base._ROLLOUT_REGISTRY[("none", "async")] = "tests.update.workers.NoRollout"
    results = []
    for case in cases:
        try:
            run = {"policy": run_policy_case, "policy steps": run_policy_steps, "answers": run_answer_case}
            results.append(run.get(case.method, run_case)(case))
        except ValueError as error:
            results.append({"error": str(error)})
    torch.save(results, Path(folder) / f"results_{rank}.pt")
    leave()


def run_cases(
    cases: list[Case], *, world: int = 1, timeout_s: float = 900.0, is_fresh: bool = False
) -> list[dict[str, Any]]:
    """Run the cases one after another on `world` ranks (a process each); results of rank 0.

    `is_fresh`: the ranks import everything themselves, in the environment of this call; others have that of the first call.

    Ranks other than 0 must agree with it: their metrics are compared here.
    """
    [port] = free_ports(1)
    environment = {
        "PYTHONPATH": f"{Path(opd.__file__).parents[1]}:{ROOT}",  # the sources under test, also where they are a copy
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    if on_cpu := cases[0].device == "cpu":
        environment |= {"VERL_USE_EXTERNAL_MODULES": "opd.compat.cpu", "VERL_ENGINE_DEVICE": "cuda"}
    # Forked from one process that has imported it all, which takes longer than most cases; CUDA's processes cannot be.
    context = multiprocessing.get_context("forkserver" if on_cpu and not is_fresh else "spawn")
    context.set_forkserver_preload(_IMPORTED)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cases.pkl").write_bytes(pickle.dumps(cases))
        ranks = [context.Process(target=_main, args=(rank, world, port, folder), daemon=True) for rank in range(world)]
        deadline_s = time.monotonic() + timeout_s
        try:
            with patch.dict(os.environ, environment):  # the forking process is begun by the first of them
                if on_cpu:
                    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
                for process in ranks:
                    process.start()
            for process in ranks:
                process.join(max(deadline_s - time.monotonic(), 0))
            codes = [process.exitcode for process in ranks]
        finally:
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()
        assert codes == [0] * world, f"worker processes ended with {codes} (None: not within {timeout_s:g} s)"
        results = [torch.load(Path(folder) / f"results_{rank}.pt", weights_only=False) for rank in range(world)]
    for mine, other in zip(results[0], results[-1], strict=True):
        if "metrics" in mine and "metrics" in other:
            own = ("timing", "perf", "opd/weight_change")  # each rank watches its own part of the weights
            a, b = ({k: v for k, v in r["metrics"].items() if not k.startswith(own)} for r in (mine, other))
            assert a == pytest.approx(b, rel=0, abs=0, nan_ok=True), "ranks disagree about the global metrics"
    return results[0]
