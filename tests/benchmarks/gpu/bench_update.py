"""Time and memory of whole updates by the real workers, without a rollout server: a table and a JSON file.

Weights are random, made from a config by shape. Every row makes one small update first, which compiles. Model FLOP of the
trained phase: 6 N a token, causal attention by each row's length, the head at trained tokens; no recomputation. Rates are
against a hot bf16 product of 8192^3 in the same process. `verl` is verl's own update on the rows
of `grpo`, with our attention, packed rows and nothing offloaded. It reads its reference like its old log-probabilities,
from the device. Without a GPU the rows are tiny, and all code runs on the CPU.

    PYTHONPATH=src:. python -m tests.benchmarks.gpu.bench_update --only grpo,verl
"""

import argparse
import gc
import multiprocessing
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:  # verl reads this when it is imported
    os.environ.update(VERL_USE_EXTERNAL_MODULES="opd.compat.cpu", VERL_ENGINE_DEVICE="cuda")

from omegaconf import OmegaConf  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from tests.benchmarks.gpu.measure import FLOOR_SIDE, Floor, elapsed_ms  # noqa: E402
from tests.gpu.facts import machine, write_record  # noqa: E402
from tests.ports import free_ports  # noqa: E402
from tests.toy_models.tokenizer import build_tokenizer  # noqa: E402
from tests.update.workers import cut_into_mini_batches, nested, row, tensordict  # noqa: E402
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen3Config  # noqa: E402
from verl.utils import model as verl_model  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.device import get_device_name  # noqa: E402
from verl.workers.engine_workers import ActorRolloutRefWorker  # noqa: E402
from verl.workers.rollout import base  # noqa: E402
from verl.workers.utils.padding import response_from_nested  # noqa: E402

from opd.experiment import load_text  # noqa: E402
from opd.experiment.run_config import KEY, RunFacts  # noqa: E402
from opd.trainer.entry import compose  # noqa: E402
from opd.update.attention import VARLEN, varlen_attention  # noqa: E402
from opd.update.opd_worker import OPDWorker  # noqa: E402
from opd.update.policy_worker import PolicyWorker  # noqa: E402
from opd.update.student import StudentWorker  # noqa: E402

ROLE = "actor_rollout_ref"
NUM_VOCAB, NUM_ENTRIES = 151_936, 151_669  # rows of Qwen3's heads, and entries of its tokenizer
PACK = 16_384
GIB = 2**30
REPORTED = ("student_s", "teacher_s", "reference_s", "score_s")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model by its sizes. `family` is the transformers config."""

    num_layers: int
    width: int
    mlp_width: int
    num_heads: int
    num_kv_heads: int = 8
    head_dim: int = 128
    tied: bool = False
    vocab: int = NUM_VOCAB
    entries: int = NUM_ENTRIES
    family: type[PretrainedConfig] = Qwen3Config

    def config(self) -> PretrainedConfig:
        """Return the model's config."""
        return self.family(
            vocab_size=self.vocab, hidden_size=self.width, intermediate_size=self.mlp_width, num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads, num_key_value_heads=self.num_kv_heads, head_dim=self.head_dim,
            max_position_embeddings=40960, tie_word_embeddings=self.tied,
            architectures=[f"{self.family.__name__.removesuffix('Config')}ForCausalLM"],
        )  # fmt: skip

    def forward_flop(self, rows: int, prompt: int, response: int) -> float:
        """Return the FLOP of one forward of the backbone: products, and the lower triangle of attention twice."""
        attention = self.width * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        parameters = self.num_layers * (attention + 3 * self.width * self.mlp_width)
        length = prompt + response
        triangle = 2.0 * length * length * self.num_heads * self.head_dim * self.num_layers
        return rows * (2.0 * parameters * length + triangle)

    def head_flop(self, tokens: int) -> float:
        """Return the FLOP of the logits of tokens."""
        return 2.0 * tokens * self.entries * self.width


QWEN3_1_7B = Shape(num_layers=28, width=2048, mlp_width=6144, num_heads=16, tied=True)
QWEN3_8B = Shape(num_layers=36, width=4096, mlp_width=12288, num_heads=32)
SMOLLM2 = Shape(
    num_layers=30, width=576, mlp_width=1536, num_heads=9, num_kv_heads=3, head_dim=64, tied=True,
    vocab=49_152, entries=49_152, family=LlamaConfig,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table.

    Args:
        updates: numbers of optimizer updates of a step, each measured; of `repeats` steps the median counts.
        gates: what the row must keep.
    """

    kind: str
    student: Shape = QWEN3_1_7B
    teacher: Shape | None = None
    rows: int = 512
    prompt: int = 128
    response: int = 1024
    sets: tuple[str, ...] = ()
    updates: tuple[int, ...] = (1,)
    repeats: int = 1
    gates: tuple[tuple[str, Callable[[Mapping[str, Any]], bool]], ...] = ()


PACKED = ("actor.use_dynamic_bsz=true", f"actor.ppo_max_token_len_per_gpu={PACK}", "actor.cut_updates=given")
NATIVE = ("recipe=grpo-native", *PACKED)
HALF = ("half of the product's rate", lambda found: found["of_product"] >= 0.5)
PLAN = ("plan within a tenth", lambda found: abs(found["of_plan"] - 1) <= 0.1)
ROWS = {
    "grpo": Row(kind="grpo", sets=NATIVE, updates=(1, 4), gates=(HALF, PLAN)),
    "sft": Row(kind="sft", sets=PACKED, gates=(HALF, PLAN)),
    "opd": Row(
        kind="opd", teacher=QWEN3_8B, rows=128, response=2048,
        gates=(("27.65 s", lambda found: found["step_s"] <= 27.65), PLAN),
    ),
    "smollm-sft": Row(
        kind="sft", student=SMOLLM2, rows=64, prompt=80, response=120, repeats=5,
        gates=(("100,000 tokens/s", lambda found: found["tokens_per_s"] >= 100_000),),
    ),
    "smollm-grpo": Row(
        kind="grpo", student=SMOLLM2, prompt=80, response=130, repeats=3, sets=("recipe=grpo-native",),
        gates=(("2.5 s", lambda found: found["step_s"] <= 2.5),),
    ),
    "smollm-opd": Row(kind="opd", student=SMOLLM2, teacher=SMOLLM2, prompt=80, response=130, repeats=3),
    "verl": Row(
        kind="verl", sets=NATIVE, updates=(1, 4),
        gates=tuple(
            (f"{least} times as fast, {key}", lambda found, key=key, least=least: found[f"{key}, times ours"]["step_s"] >= least)
            for key, least in (("1 updates", 1.5), ("4 updates", 1.3))
        ),
    ),
}  # fmt: skip


TINY = {"num_layers": 2, "width": 32, "mlp_width": 48, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "vocab": 128}


def tiny(given: Row) -> Row:
    """Return the same row in sizes that a CPU computes in a second."""
    student, teacher = (shape and replace(shape, **TINY, entries=120) for shape in (given.student, given.teacher))
    return replace(given, student=student, teacher=teacher, rows=32, prompt=4, response=8)


class RandomWeights:
    """Stand-in for transformers' auto class: a config's model with random weights made on the device."""

    @staticmethod
    def from_pretrained(
        pretrained_model_name_or_path: str, torch_dtype: torch.dtype, config: PretrainedConfig, **kwargs: Any
    ) -> torch.nn.Module:
        """Return the model of a config; each folder has weights of its own."""
        torch.manual_seed(zlib.crc32(Path(pretrained_model_name_or_path).name.encode()))
        with torch.device(get_device_name()):
            return AutoModelForCausalLM.from_config(config, dtype=torch_dtype)


def sets_of(given: Row, folder: Path) -> list[str]:
    """Return the keys of a row's experiment."""
    samples = 8 if given.kind in ("grpo", "verl") else 1  # answers to a prompt
    prompts = given.rows // samples
    sets = [
        f"device={get_device_name()}", f"model.path={folder / 'student'}", f"data.train_batch_size={prompts}",
        f"data.max_prompt_length={given.prompt}", f"data.max_response_length={given.response}",
        f"actor.ppo_mini_batch_size={prompts}", "actor.dtype=bf16", "trainer.gpus_per_node=1", *given.sets,
    ]  # fmt: skip
    if given.kind == "sft":
        return [*sets, "data.train=[train.parquet]", "data.val=[val.parquet]"]
    sets += [f"rollout.num_samples={samples}", "rollout.gpu_memory_utilization=0.4"]
    if given.kind == "opd":
        sets.append(f"teacher.path={folder / 'teacher'}")
    if given.kind == "verl":
        sets += ["actor.param_offload=false", "actor.optimizer_offload=false", "actor.gradient_checkpointing=true"]
        sets.append(f"actor.log_prob_max_token_len_per_gpu={2 * PACK}")
    return sets


def make_worker(given: Row, folder: Path) -> Any:
    """Return the worker of a row, with its models on the device."""
    for name, shape in {"student": given.student, "teacher": given.teacher or given.student}.items():
        shape.config().save_pretrained(folder / name)
        build_tokenizer().save_pretrained(folder / name)
    kind, steps = given.kind.replace("verl", "grpo"), f"{ROLE}.actor.optim.total_training_steps=100"
    spec = load_text(f"kind: {kind}", sets=sets_of(given, folder), overrides=[steps]).spec
    composed = compose(spec, RunFacts(run_id="r", run_dir="out/r", valid_vocab=given.student.entries))
    if ON_GPU:
        composed.actor_rollout_ref.rollout.name = "none"
    OmegaConf.update(composed, f"{ROLE}.{KEY}", composed[KEY], force_add=True)
    OmegaConf.resolve(composed)
    if given.kind == "verl":
        attend_by_positions()
    cls = {"opd": OPDWorker, "grpo": PolicyWorker, "sft": StudentWorker, "verl": ActorRolloutRefWorker}[given.kind]
    worker = cls(config=composed.actor_rollout_ref, role="actor" if given.kind in ("sft", "verl") else ROLE)
    worker.init_model()
    return worker


def random_rows(given: Row, num_rows: int) -> TensorDict:
    """Return rows as verl's workers get them, every response token trained."""
    ids = torch.randint(0, given.student.entries, (num_rows, given.prompt + given.response)).tolist()
    data = tensordict([row(one[: given.prompt], one[given.prompt :]) for one in ids])
    data["advantages"] = nested([torch.randn(1).expand(given.response).clone() for _ in ids])
    return data


class Taken(NamedTuple):
    """The seconds, the peak and the output of a call."""

    seconds: float
    peak: int
    output: TensorDict


def timed(call: Callable[[], TensorDict], *, empties: bool = True) -> Taken:
    """Call once, from an idle device to an idle device.

    Args:
        empties: the allocator's cache is empty, as after a rollout server had the device.
    """
    gc.collect()
    if ON_GPU:
        if empties:
            torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    began_s = time.perf_counter()
    output = call()
    if ON_GPU:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began_s
    return Taken(seconds, torch.cuda.max_memory_allocated() if ON_GPU else 0, output)


def product_rate() -> float:
    """Return the FLOP/s of a hot square bf16 product, over about a second; 1e9 on a CPU."""
    if not ON_GPU:
        return 1e9
    floor, flop = Floor(), 6e14
    for _ in range(2):  # the first is a warm-up
        milliseconds = elapsed_ms(floor.run(flop))
    return floor.count(flop) * 2e3 * FLOOR_SIDE**3 / milliseconds


def attend_by_positions() -> None:
    """Let `varlen` find the rows of verl's packs by their positions: verl passes no bounds."""
    last: list[tuple[torch.Tensor, torch.Tensor]] = []

    def attention(module: Any, *states: Any, position_ids: torch.Tensor, **kwargs: Any) -> Any:
        if not last or last[0][0] is not position_ids:  # the other layers of a forward find them again
            starts = (position_ids.flatten() == 0).nonzero().flatten()
            bounds = torch.cat([starts, starts.new_tensor([position_ids.numel()])]).to(torch.int32)
            last[:] = [(position_ids, bounds)]
        return varlen_attention(module, *states, **kwargs | {"cu_seq_lens_q": last[0][1]})

    AttentionInterface.register(VARLEN, attention)


def our_update(worker: Any, given: Row, num_rows: int, num_updates: int) -> Taken:
    """Make one step of one of our workers."""
    data = random_rows(given, num_rows)
    cut_into_mini_batches(data, num_rows // num_updates)
    return timed(lambda: worker.update_actor(data), empties=given.kind != "sft")


def verl_step(worker: Any, given: Row, num_rows: int, num_updates: int) -> dict[str, float]:
    """Make one step of verl's worker as its trainer does; return the seconds of its phases."""
    data, seconds = random_rows(given, num_rows), {}
    for phase, name in (("reference_s", "ref_log_prob"), ("score_s", "old_log_probs")):
        asked = data.select("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask")
        tu.assign_non_tensor(asked, calculate_entropy=phase == "score_s", compute_loss=False, temperature=1.0)
        taken = timed(lambda asked=asked: worker.compute_log_prob(asked))
        seconds[phase] = taken.seconds
        data[name] = response_from_nested(taken.output["log_probs"], data["response_mask"])
    cut_into_mini_batches(data, num_rows // num_updates)
    tu.assign_non_tensor(data, calculate_entropy=False)
    seconds["student_s"] = timed(lambda: worker.update_actor(data)).seconds
    return seconds | {"step_s": sum(seconds.values())}


def planned_bytes(worker: Any) -> int:
    """Return the plan's peak of the phases measured here, without what is reserved and what the server keeps."""
    phases = [phase for phase in worker.plan.phases if phase.name not in ("rollout", "weight sync")]
    return max(p.total - p.parts["reserve"] - p.parts.get("rollout server", 0) for p in phases)


def measure_ours(given: Row, worker: Any) -> dict[str, Any]:
    """Measure the row of one of our workers."""
    found: dict[str, Any] = {}
    for number in given.updates:
        our_update(worker, given, 32, number)
        steps = (our_update(worker, given, given.rows, number) for _ in range(given.repeats))
        taken = sorted(steps, key=lambda step: step.seconds)[given.repeats // 2]
        metrics = tu.get(taken.output, "metrics")
        phases = {name: metrics[f"timing/{name}"][0] for name in REPORTED if f"timing/{name}" in metrics}
        found[f"{number} updates"] = phases | {"step_s": taken.seconds}
        if number == given.updates[0]:
            first, rate, trained_s = taken, product_rate(), phases.get("student_s", taken.seconds)
    tokens = given.rows * given.response
    forward = given.student.forward_flop(given.rows, given.prompt, given.response)
    flop = 3 * (forward + given.student.head_flop(tokens)) + (given.teacher.head_flop(tokens) if given.teacher else 0)
    planned = planned_bytes(worker)
    return found | {
        "step_s": first.seconds, "trained_s": trained_s, "product_tflops": rate / 1e12, "of_product": flop / trained_s / rate,
        "tokens_per_s": given.rows * (given.prompt + given.response) / first.seconds,
        "peak_gib": first.peak / GIB, "planned_gib": planned / GIB, "of_plan": first.peak / planned,
        **{name: getattr(worker.plan.choice, name) for name in ("checkpointing", "activation_share", "train_tokens")},
    }  # fmt: skip


def measure_verl(given: Row, worker: Any, ours: Mapping[str, Any] | None) -> dict[str, Any]:
    """Measure verl's phases, and compare them with the phases of our row `grpo`."""
    found: dict[str, Any] = {}
    for number in given.updates:
        verl_step(worker, given, 32, number)
        its = found[f"{number} updates"] = verl_step(worker, given, given.rows, number)
        if ours is not None:
            found[f"{number} updates, times ours"] = {k: its[k] / v for k, v in ours[f"{number} updates"].items()}
    return found


def measure(name: str, of_grpo: Mapping[str, Any] | None) -> dict[str, Any]:
    """Measure a row in this process; verl's is compared with the row `grpo`, if there is one."""
    [port] = free_ports(1)
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    verl_model.get_hf_auto_model_class = lambda hf_config: RandomWeights
    base._ROLLOUT_REGISTRY[("none", "async")] = "tests.update.workers.NoRollout"
    given = ROWS[name] if ON_GPU else tiny(ROWS[name])
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        worker = make_worker(given, Path(folder))
        is_ours = given.kind != "verl"
        taken = measure_ours(given, worker) if is_ours else measure_verl(given, worker, of_grpo)
    is_gated = ON_GPU and (is_ours or of_grpo is not None)
    return taken | {"missed": [gate for gate, is_kept in given.gates if is_gated and not is_kept(taken)]}


def main() -> None:
    """Measure the rows asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROWS), help="names of rows, separated by commas")
    parser.add_argument("--json", type=Path, default=Path("build/bench-gpu/update.json"))
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # as Ray sets it for a rank; 32 threads halve the speed of a small model
    facts = machine("torch", "triton", "transformers", "verl") if ON_GPU else {"device": "CPU, tiny rows"}
    found: dict[str, Any] = {}
    began_s = time.perf_counter()
    for name in arguments.only.split(","):
        # A process of its own: memory that one row leaves would count in the next one's peak.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            found[name] = pool.submit(measure, name, found.get("grpo")).result()
        print(f"{time.perf_counter() - began_s:6.0f} s  {name}: {found[name]}", flush=True)
        write_record(arguments.json, {"environment": facts, "rows": found})


if __name__ == "__main__":
    main()
