"""Mutated experiment files: a valid one with a few edits, most of them harmless, and one error of a known class or none."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st
from tests.charts.helm import EXPERIMENTS, IMAGE

from opd.config.reader import read_text

TREES = {name: read_text(path.read_text(), origin=name).tree for name, path in EXPERIMENTS.items()}
TEXTS = st.sampled_from(
    ["1:30", "no", "0x1f", "1e16", "010", "null", "~", "true", "", "a: b", "#", "é\u0085\n", "{{ x }}"]
)
FLOATS = st.sampled_from([1e-6, 1e-7, 1.0, 0.3, 5e-324, 2, 1e16])

# Harmless by themselves; together they may break a rule between keys, and then both sides must say so.
EDITS: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 2**31 - 1),
    "name": st.sampled_from(["a", "run-1", "a" * 47]),
    "env": st.dictionaries(st.sampled_from(["A", "B_1"]), TEXTS, max_size=2),
    "output.root": st.sampled_from(["outputs", "/opd/x", "a b"]),
    "data.max_prompt_length": st.integers(1, 4096),
    "data.max_response_length": st.sampled_from([1, 8, 8192]),
    "data.shuffle": st.booleans(),
    "data.truncation": st.sampled_from(["error", "left"]),
    "data.train_ratio": st.sampled_from([0.8, 1.0, 1, 1e-6]),
    "rollout.num_samples": st.sampled_from([1, 2, 8]),
    "rollout.temperature": FLOATS,
    "rollout.top_k": st.sampled_from([-1, 1, 50]),
    "rollout.engine_kwargs": st.dictionaries(
        st.sampled_from(["x", "y_z"]), st.one_of(FLOATS, TEXTS, st.booleans()), max_size=2
    ),
    "rollout.val": st.fixed_dictionaries(
        {"num_samples": st.integers(1, 32), "temperature": st.sampled_from([0, 0.0, 0.7])}
    ),
    "actor.learning_rate": FLOATS,
    "actor.weight_decay": st.sampled_from([0, 0.0, 0.1]),
    "actor.betas": st.sampled_from([[0.9, 0.95], [0, 0.999]]),
    "actor.use_dynamic_bsz": st.booleans(),
    "actor.ppo_mini_batch_size": st.sampled_from([1, 16, 32, 64, 128]),
    "actor.ulysses_sequence_parallel_size": st.sampled_from([1, 1, 2]),
    "reward.timeout_s": st.sampled_from([0.5, 10, 1e16]),
    "trainer.nnodes": st.sampled_from([1, 1, 2]),
    "trainer.gpus_per_node": st.sampled_from([1, 2, 8, 8]),
    "trainer.loggers": st.sampled_from([["console"], ["file", "wandb"]]),
    "trainer.total_steps": st.sampled_from([1, 2**52]),
    "trainer.save_freq": st.sampled_from([-1, 0, 5]),
    "checkpoint.keep_last": st.integers(1, 5),
    "opd.loss_type": st.sampled_from(["reverse_kl", "forward_kl", "jsd"]),
    "opd.chunk_size": st.integers(1, 10**6),
    "grpo.kl_loss_coef": st.sampled_from([0, 0.001]),
    "convert.dtype": st.sampled_from(["base", "bf16"]),
    "convert.verify": st.booleans(),
    "cluster.stop.saveSeconds": st.integers(1, 3600),
    "cluster.head.shmGib": st.sampled_from([1, 1.5, 8]),
    "rollout.num_agent_workers": st.sampled_from([0, 1, 16]),
    "overrides": st.sampled_from([[], ["transfer_queue.backend.SimpleStorage.num_data_storage_units=16"]]),
    "cluster.retries.backoffLimit": st.integers(0, 3),
    "cluster.labels": st.just({"team": "a"}),
}
SECTION_OF = {
    "grpo": ("grpo",),
    "checkpoint": ("grpo", "opd", "opd-agent"),
    "opd": ("opd", "opd-agent"),
    "convert": ("convert",),
}
ONLY_TRAINING = {"trainer.total_steps", "trainer.save_freq"}
EVERY_KIND = {"seed", "name", "env", "output", "cluster"}
RUNS = ("grpo", "opd", "opd-agent", "eval", "passrate")

# Error class -> (kinds it fits, edits that make it)
ERRORS: dict[str, tuple[tuple[str, ...], list[dict[str, Any]]]] = {
    "unknown key": ((*RUNS, "convert"), [{"sead": 1}, {"output.path": "x"}, {"cluster.images": 1}, {"cluster.stop.saveS": 5}]),
    "wrong type": ((*RUNS, "convert"), [{"seed": "1"}, {"seed": 1.5}, {"name": 3}, {"env": ["A"]}, {"env.A": 1}, {"output.root": False},
                                        {"cluster.auth.token": "yes"}, {"cluster.head.shmGib": "2"}]),
    "out of range": ((*RUNS, "convert"), [{"seed": -1}, {"seed": 2**31}, {"name": "A"}, {"name": "a" * 48}, {"cluster.retries.backoffLimit": -1},
                                          {"cluster.checkpoints.path": "x"}, {"cluster.lifecycle": "forever"}]),
    "out of range (run)": (RUNS, [{"actor.learning_rate": -1e-6}, {"rollout.top_k": 0}, {"rollout.top_p": 0}, {"trainer.nnodes": 0},
                                  {"trainer.loggers": []}, {"data.train_batch_size": 0}, {"device": "tpu"}, {"actor.grad_clip": 0}]),
    "missing": ((*RUNS, "convert"), [{"kind": None}, {"model.path": None, "convert.checkpoint": None}]),
    "null": ((*RUNS, "convert"), [{"seed": "NULL"}, {"output": "NULL"}, {"store.url": "NULL"}, {"cluster.image.ref": "NULL"}]),
    "secret": ((*RUNS, "convert"), [{"env": {"HF_TOKEN": "x"}}, {"store.url": "s3://u:p@b/x"}, {"env": {"A_PASSWORD": ""}},
                                    {"cluster.extraEnv": [{"name": "WANDB_API_KEY", "value": "x"}]}]),
    "foreign kind": (RUNS, [{"kind": "convert"}, {"kind": "dpo"}, {"matrix": {"seed": [1]}}, {"convert": {"checkpoint": "c"}}]),
    "rule": (RUNS, [{"data.train_batch_size": 100, "actor.ppo_mini_batch_size": 64}, {"data.filter_overlong": False, "data.truncation": "left"},
                    {"rollout.tensor_parallel_size": 7}, {"reward.function": "custom"}, {"reward.function": "math_dapo", "reward.path": "f.py"},
                    {"actor.ppo_max_token_len_per_gpu": 1, "model.attn_implementation": "sdpa"}, {"rollout.name": "cpu", "device": "cuda"},
                    {"actor.ulysses_sequence_parallel_size": 2, "model.attn_implementation": "eager"},
                    {"actor.ulysses_sequence_parallel_size": 2, "actor.use_remove_padding": False}]),
    "rule (distillation)": (("opd", "opd-agent"), [{"opd.max_length": 2}, {"opd.loss_type": "reverse_kl", "opd.beta": 0.5}, {"opd.loss_type": "jsd", "opd.beta": 1.0},
                                                   {"opd.loss_type": "jsd", "opd.beta": 0}, {"opd.reward_beta": 0.5, "rollout.num_samples": 1},
                                                   {"opd.importance.problems": {"weights": "competence"}}, {"opd.importance.problems": {"pass_rates": "p.parquet"}},
                                                   {"opd.importance.problems": {"weights": "hard_filter", "pass_rates": "p.parquet", "beta": 2}},
                                                   {"opd.importance.problems": {"weights": "competence", "pass_rates": "p.parquet", "recompute": {"every": 2}}},
                                                   {"opd.stages": [{"loss_type": "forward_kl"}, {"until": 1}]}, {"opd.horizon": {"grow_until": 0.5}}]),
    "override": (RUNS, [{"overrides": ["actor_rollout_ref.model.lora_rank=8"]}, {"overrides": ["trainer.v1.trainer_mode=async"]},
                        {"overrides": ["+x.HF_TOKEN=1"]}, {"overrides": [""]}, {"overrides": "a=b"}]),
    "rule (resources)": (RUNS, [{"cluster.worker.requests.cpu": 4, "trainer.gpus_per_node": 2, "device": "cuda"},
                                {"cluster.worker.requests.memory": "2Ti", "cluster.worker.limits.memory": "1Ti"},
                                {"cluster.worker.requests.cpu": "100", "cluster.worker.limits.cpu": "99500m"}, {"cluster.head.shmGib": 65, "cluster.head.limits.memory": "64Gi"},
                                {"cluster.worker.requests.memory": "8Gi", "cluster.worker.limits.memory": "8Gi", "cluster.worker.shmGib": 9},
                                {"cluster.worker.limits.memory": 1000, "cluster.worker.requests.memory": 1000},
                                {"cluster.head.limits.memory": "1500M", "cluster.head.shmGib": 1},
                                {"cluster.submitter.requests.memory": "2Gi"}, {"cluster.image.ref": "a b@sha256:" + "0" * 64},
                                {"cluster.checkpoints": {"accessMode": "ReadWriteOnce"}, "trainer.nnodes": 2, "actor.ppo_mini_batch_size": 64, "data.train_batch_size": 64},
                                {"overrides": ["transfer_queue.backend.SimpleStorage.num_data_storage_units=100"], "device": "cuda", "cluster.worker.requests.cpu": 100}]),
    "rule (cluster)": ((*RUNS, "convert"), [{"cluster.deadlines": {"activeSeconds": 5}}, {"cluster.head.objectStoreGib": 4096},
                                            {"cluster.cleanUp.failed.selfSeconds": 0}, {"cluster.auth.token": False, "cluster.networkPolicy.enabled": False}]),
    "rule (chart)": ((*RUNS, "convert"), [{"cluster.image.ref": "x:latest"}, {"cluster.mounts": [{"claim": "a", "path": "/tmp"}]}]),
}  # fmt: skip


def fits(path: str, kind: str) -> bool:
    """Whether a kind has the key."""
    section = path.partition(".")[0]
    if path in ONLY_TRAINING and kind in ("eval", "passrate"):
        return False
    return section in EVERY_KIND or kind in SECTION_OF.get(section, RUNS)


def edit(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set a key; None removes it where it is, "NULL" writes a null."""
    *parents, last = path.split(".")
    for key in parents:
        if not isinstance(tree.get(key), dict):
            if value is None:
                return
            tree[key] = {}
        tree = tree[key]
    if value is None:
        tree.pop(last, None)
    else:
        tree[last] = None if value == "NULL" else value


@st.composite
def mutated(draw: Any, label: str) -> tuple[str, str, dict[str, Any]]:
    """(error class or "", chart, tree): an example with up to three harmless edits and one error of that class."""
    kinds, errors = ERRORS.get(label, ((*RUNS, "convert"), [{}]))
    tree = copy.deepcopy(TREES[draw(st.sampled_from([name for name in sorted(TREES) if TREES[name]["kind"] in kinds]))])
    kind = tree["kind"]
    tree.setdefault("cluster", {})["image"] = dict(IMAGE["cluster"]["image"])
    for path in draw(st.lists(st.sampled_from(sorted(EDITS)), max_size=3, unique=True)):
        if fits(path, kind):
            edit(tree, path, draw(EDITS[path]))
    for path, value in draw(st.sampled_from(errors)).items():
        edit(tree, path, value)
    return label, kind, tree
