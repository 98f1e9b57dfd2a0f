"""Runs the real OPD worker (engines, FSDP2, gloo) on one or two ranks without Ray, on rows made by the test."""

import dataclasses
import faulthandler
import gc
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tensordict import TensorDict
from tests.ports import free_ports
from tests.rank_end import leave
from torch.utils._python_dispatch import TorchDispatchMode

import opd
from opd.rollout.rows import IDS, LOG_PROBS

ROOT = Path(__file__).resolve().parents[2]
OUTPUT_SHOWN = 4_000  # characters of the end of a rank's output, after a failure
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
    first_step: int = 0  # the training step of the first of them
    shown: tuple[int, ...] = ()  # rows whose tokens are asked for one by one; `seen` is what all ranks tell
    teachers: dict[str, str] = field(default_factory=dict)  # several by name; a row's own is its `teacher`, a number
    saves_to: str = ""  # folder `global_step_N` of a checkpoint that is saved before the last step
    saves_beside: bool = False  # it is written from copies, once the last step has changed what was copied
    resumes_from: str = ""  # such a folder: only the last step is made, from there
    nan_teacher: bool = False  # the teacher answers nan for the rows of the last rank


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
    columns = {
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
    }
    if any("teacher_prompt" in r for r in rows):
        columns["teacher_prompts"] = nested([torch.tensor(r.get("teacher_prompt", r["prompt"])) for r in rows])
    for place, name in enumerate((IDS, LOG_PROBS) if "events" in rows[0] else ()):
        columns[name] = nested([r["events"][place] for r in rows])
    return TensorDict(columns, batch_size=len(rows))


def config(case: Case, kind: str = "opd"):
    """Return what verl gives the worker of a run; no rule of the spec counts, so that tests reach the worker's own refusals."""
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
    own = {"dtype": "fp32", "offload": "true"}
    if not case.teachers:
        return [f"teacher.{key}={value}" for key, value in {"path": case.teacher, **own}.items()]
    to = ", ".join(f"{name}: {name}" for name in case.teachers)
    by_name = {name: {"path": path, **own} for name, path in case.teachers.items()}
    sets = [f"teachers.{name}.{key}={value}" for name, keys in by_name.items() for key, value in keys.items()]
    return [*sets, f"route.to={{{to}}}"]


def cut_into_mini_batches(data: TensorDict, mini_batch: int) -> None:
    """Notes on the rows what the trainer's driver does: mini-batches of so many rows, one epoch, in order."""
    from verl.utils import tensordict_utils as tu

    tu.assign_non_tensor(
        data,
        global_batch_size=mini_batch,
        mini_batch_size=mini_batch,
        epochs=1,
        seed=1,
        training_step=0,
        shown_rows=(),
        dataloader_kwargs=tu.NonTensorData({"shuffle": False}),
        temperature=1.0,
    )


def _fresh_worker(case: Case, kind: str = "opd") -> tuple[Any, TensorDict]:
    """Return a worker of a kind, and this rank's share of the rows."""
    from opd.update.opd_worker import OPDWorker
    from opd.update.policy_worker import PolicyWorker
    from opd.update.student import StudentWorker

    torch.manual_seed(0)
    worker_type = {"opd": OPDWorker, "grpo": PolicyWorker, "sft": StudentWorker}[kind]
    reads = kind == "opd" or not any("lora" in each for each in case.sets)
    role = "actor" if kind == "sft" else "actor_rollout_ref" if reads else "actor_rollout"
    worker = worker_type(config=config(case, kind), role=role)
    worker.init_model()
    engine = worker.student_engine
    per_rank, index = len(case.rows) // engine.get_data_parallel_size(), engine.get_data_parallel_rank()
    data = tensordict(case.rows[index * per_rank : (index + 1) * per_rank], index * per_rank)
    cut_into_mini_batches(data, case.mini_batch or len(case.rows))
    return worker, data


def _make_earlier_steps(worker, data: TensorDict, case: Case, update: Callable) -> list[Callable[[], None]]:
    """Make all steps but the last, or load what they left, and save; return the writes that wait for the last step."""
    from verl.utils import tensordict_utils as tu

    from opd.update import shards

    def number(step: int) -> None:
        tu.assign_non_tensor(data, training_step=case.first_step + step)

    waiting: list[Callable[[], None]] = []
    if case.resumes_from:
        worker.load_checkpoint(f"{case.resumes_from}/actor")
    for step in range(0 if case.resumes_from else case.num_steps - 1):
        number(step)
        update(data.clone())
    worker.copies_saves = case.saves_beside
    if case.saves_beside:
        with patch.object(shards, "Background", lambda call, name: waiting.append(call)):
            worker.save_checkpoint(f"{case.saves_to}/actor", global_step=case.num_steps - 1)
        assert not list(Path(case.saves_to).rglob("*.pt"))
    elif case.saves_to:
        worker.save_checkpoint(f"{case.saves_to}/actor", global_step=case.num_steps - 1)
    number(case.num_steps - 1)
    return waiting


def run_case(case: Case) -> dict[str, Any]:
    """Run one step of a fresh worker of distillation; return reduced metrics, weights, places of the backbones."""
    from verl.utils import tensordict_utils as tu

    from opd.update import step_metrics as step_counts
    from opd.update.token_view import seen_by_all

    worker, data = _fresh_worker(case)
    engine, teacher = worker.student_engine, worker.readers[0]
    tu.assign_non_tensor(data, shown_rows=case.shown)
    gradients, places = _keep_gradients(engine), _note_places(worker)
    waiting = _make_earlier_steps(worker, data, case, worker.update_actor)
    before = _weights(engine)
    with Collectives() as collectives, _answers_of_teacher(case):
        output = worker.update_actor(data)
    for write in waiting:
        write()
    weights = _weights(engine)
    mode = worker.opd.loss_agg_mode
    metrics = {} if output is None else {"metrics": step_counts.reduce(tu.get(output, "metrics"), loss_agg_mode=mode)}
    return metrics | {
        "weights": weights,
        "weights_before": before,
        "teacher_weights": _weights(teacher),
        "buffers": {name: dict(one.module.named_buffers()) for name, one in _backbones(worker).items()},
        # What the rollout server gets.
        "served": {name: weight.cpu() for name, weight in engine.get_per_tensor_param(base_sync_done=True)[0]},
        "has_moved": any(not torch.equal(before[name], weights[name]) for name in weights),
        "nonfinite_rows": _of_ranks(worker.read_nonfinite_rows()),
        "seen": seen_by_all(_of_ranks(worker.read_token_view() if case.shown else {})),
        "gradients": gradients,
        "places": places | {"done": _places(worker)},
        "collectives": dict(collectives.counts),
        "choice": None if worker.plan is None else dataclasses.asdict(worker.plan.choice),
    }


def _of_ranks(value: Any) -> list[Any]:
    """Return what each rank has (a collective call)."""
    values = [value] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _places(worker) -> dict[str, str]:
    """Return where the weights of either backbone are now: on the device, or parked on the host by its engine."""
    return {
        name: "device" if engine.mode is not None or not engine.is_param_offload_enabled else "offloaded"
        for name, engine in _backbones(worker).items()
    }


def _backbones(worker) -> dict[str, Any]:
    return {"teacher": worker.readers[0], "student": worker.student_engine}


def _note_places(worker) -> dict[str, dict[str, str]]:
    """Return a map of `_places` as they were when each backbone last began to read a micro-batch."""
    noted: dict[str, dict[str, str]] = {}
    for name, engine in _backbones(worker).items():
        engine.module.register_forward_pre_hook(lambda *_, name=name: noted.update({name: _places(worker)}))
    return noted


def _weights(engine) -> dict[str, torch.Tensor]:
    if parked := getattr(engine, "parked", None):
        parked.load()  # a GPU's collectives take no weights of the host
    return {name: _whole(weight) for name, weight in engine.module.state_dict().items()}


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the host of all shards."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().cpu().clone()


def _answers_of_teacher(case: Case):
    """Make the hidden states of the last rank nan where the case says so."""
    from opd.update.teacher_cache import HiddenCache

    is_last = torch.distributed.get_rank() == torch.distributed.get_world_size() - 1
    put, factor = HiddenCache.put, torch.nan if is_last and case.nan_teacher else 1.0
    return patch.object(HiddenCache, "put", lambda cache, row, hidden: put(cache, row, hidden * factor))


def told_log_probs(response: torch.Tensor, whose: str) -> torch.Tensor:
    """Log-probabilities of a response's tokens that a test gives in the place of what a model reads."""
    return {"old": -2.0 - response / 50, "reference": -2.5 + response / 50}[whose]


def run_policy_case(case: Case) -> dict[str, Any]:
    """Run GRPO's last step of a fresh worker, by the method `policy` with the test's old and reference log-probabilities."""
    from verl.utils import tensordict_utils as tu

    from opd.batch.builder import rows_from_batch
    from opd.update.policy_worker import reduce

    worker, data = _fresh_worker(case, "grpo")
    engine, data["opd_row"] = worker.student_engine, torch.arange(len(data))
    data["advantages"] = nested([torch.sin(r.float()) for r in data["responses"].unbind()])
    gradients = _keep_gradients(engine)
    _make_earlier_steps(worker, data, case, worker.update_actor)
    rows, before = rows_from_batch(data), _weights(engine)
    read = {"actor": worker.read_log_probs(data, rows, engine), "ref": worker._read_reference(data, rows)}

    def told(whose: str) -> torch.Tensor:
        pairs = zip(data["responses"].unbind(), data["response_mask"].unbind(), strict=True)
        return torch.cat([told_log_probs(response, whose)[mask.bool()].float() for response, mask in pairs])

    with ExitStack() as stack:
        if case.method == "policy":
            stack.enter_context(patch.object(worker, "old_log_probs", lambda *_: told("old")))
            stack.enter_context(patch.object(worker, "_read_reference", lambda *_: told("reference")))
        output = worker.update_actor(data.clone())
    update = {} if output is None else reduce(tu.get(output, "metrics"))
    weights = {"weights_before": before, "weights": _weights(engine)}
    return weights | {"log_probs": read, "gradients": gradients, "update": update}


def run_answer_case(case: Case) -> dict[str, Any]:
    """Run supervised fine-tuning on a fresh worker: measure the loss without a gradient, then make one update."""
    from verl.utils import tensordict_utils as tu

    from opd.update.step_metrics import answer_metrics, totals

    worker, data = _fresh_worker(case, "sft")
    measured = worker.measure_loss(data.clone())
    gradients, before = _keep_gradients(worker.student_engine), _weights(worker.student_engine)
    output = worker.update_actor(data)
    found = {"gradients": gradients, "weights_before": before, "has_rollout": worker.rollout is not None}
    if output is not None:  # of the ranks that share a sequence one speaks for all
        total = totals(tu.get(measured, "metrics"))
        update = answer_metrics(tu.get(output, "metrics"))
        found |= {"measured": total["sum/loss"] / total["sum/tokens"], "update": update}
    return found


def _keep_gradients(engine) -> dict[str, torch.Tensor]:
    """Return a map that each update fills with its whole gradients, before clipping and the optimizer."""
    kept: dict[str, torch.Tensor] = {}
    step = engine.optimizer_step

    def keeping() -> float:
        parameters = engine.module.named_parameters()
        kept.update({name: _whole(each.grad) for name, each in parameters if each.grad is not None})
        return step()

    engine.optimizer_step = keeping
    return kept


_WORKERS = [f"opd.update.{name}_worker" for name in ("opd", "policy")]


def _main(rank: int, world: int, port: int, folder: str) -> None:
    with (Path(folder) / f"output_{rank}.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    faulthandler.enable()  # says in which calls the threads were if a library aborts
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
            run = {"update": run_case, "answers": run_answer_case}.get(case.method, run_policy_case)
            results.append(run(case))
        except ValueError as error:
            traceback.print_exc()  # shown if the other rank had none, and waits for this one
            results.append({"error": str(error)})
    torch.save(results, Path(folder) / f"results_{rank}.pt")
    leave()


def run_cases(
    cases: list[Case], *, world: int = 1, timeout_s: float = 900.0, is_fresh: bool = False
) -> list[dict[str, Any]]:
    """Run the cases one after another on `world` ranks (a process each); return results of rank 0, whose metrics are all ranks'.

    If `is_fresh`, the ranks import everything in the environment of this call; others have the environment of the first call.
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
    context.set_forkserver_preload(["verl", "opd.trainer.entry", *_WORKERS])
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
        ends = "\n".join(each.read_text()[-OUTPUT_SHOWN:] for each in sorted(Path(folder).glob("output_*.txt")))
        assert codes == [0] * world, f"worker processes ended with {codes} (None: not within {timeout_s:g} s)\n{ends}"
        results = [torch.load(Path(folder) / f"results_{rank}.pt", weights_only=False) for rank in range(world)]
    for mine, other in zip(results[0], results[-1], strict=True):
        if "metrics" in mine and "metrics" in other:
            own = ("timing", "perf", "opd/weight_change")  # each rank watches its own part of the weights
            a, b = ({k: v for k, v in r["metrics"].items() if not k.startswith(own)} for r in (mine, other))
            assert a == pytest.approx(b, rel=0, abs=0, nan_ok=True), "ranks disagree about the global metrics"
    return results[0]
