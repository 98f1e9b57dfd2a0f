"""The real OPD worker in one process without Ray and without a rollout server, on random models given by shape alone."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from tests.ports import free_ports
from tests.worker.workers import cut_into_mini_batches, nested, row, tensordict
from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen3Config

from opd.data.toy.tokenizer import build_tokenizer

ROLE = "actor_rollout_ref"
NUM_VOCAB = 151_936  # rows of Qwen3's heads
NUM_ENTRIES = 151_669  # of its tokenizer: what the divergence counts


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Qwen3 by its sizes."""

    num_layers: int
    width: int
    mlp_width: int
    num_heads: int
    num_kv_heads: int = 8
    head_dim: int = 128
    tied: bool = False

    def config(self) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=NUM_VOCAB,
            hidden_size=self.width,
            intermediate_size=self.mlp_width,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=40960,
            tie_word_embeddings=self.tied,
            architectures=["Qwen3ForCausalLM"],
        )

    @property
    def backbone_parameters(self) -> int:
        """Without embedding and head."""
        attention = self.width * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.width * self.mlp_width)

    def attention_flop(self, lengths: list[int]) -> float:
        """Causal attention of one forward: two products over the lower triangle, each row by its own length."""
        return sum(2.0 * n * n for n in lengths) * self.num_heads * self.head_dim * self.num_layers


QWEN3_1_7B = Shape(num_layers=28, width=2048, mlp_width=6144, num_heads=16, tied=True)
QWEN3_8B = Shape(num_layers=36, width=4096, mlp_width=12288, num_heads=32)
PAIR = {"student": QWEN3_1_7B, "teacher": QWEN3_8B}


class _RandomWeights:
    """Stands where transformers' auto class stands: the shape's config, random weights made on the device, of each folder its own."""

    @staticmethod
    def from_pretrained(
        pretrained_model_name_or_path: str, torch_dtype: torch.dtype, config: PretrainedConfig, **kwargs: Any
    ) -> torch.nn.Module:
        from verl.utils.device import get_device_name

        torch.manual_seed(zlib.crc32(Path(pretrained_model_name_or_path).name.encode()))
        with torch.device(get_device_name()):
            return AutoModelForCausalLM.from_config(config, dtype=torch_dtype)


def prepare(folder: Path, shapes: Mapping[str, Shape] = PAIR) -> None:
    """Single-rank process group settings, random weights and the empty rollout in verl's registries; a folder for each shape."""
    [port] = free_ports(1)
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    from verl.utils import model as verl_model
    from verl.workers.rollout import base

    verl_model.get_hf_auto_model_class = lambda hf_config: _RandomWeights
    base._ROLLOUT_REGISTRY[("none", "async")] = "tests.worker.workers.NoRollout"
    tokenizer = build_tokenizer()
    for name, shape in shapes.items():
        shape.config().save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def make_worker(
    worker_class: type,
    folder: Path,
    *,
    micro_batch: int,
    teacher_micro_batch: int,
    max_length: int,
    settings: list[str],
    teacher_sets: Sequence[str] = (),
) -> Any:
    """A worker of `worker_class` with both models on the device; `settings` are overrides of `opd_trainer.yaml`.

    Args:
        teacher_sets: keys of the spec that say which teachers there are; none: the one of `PAIR`, on the device.
    """
    from omegaconf import OmegaConf
    from verl.utils.device import get_device_name

    from opd.config import load_text
    from opd.config.run_config import KEY, RunFacts
    from opd.trainer.entry import compose

    sets = [
        f"device={get_device_name()}",
        f"model.path={folder / 'student'}",
        *(teacher_sets or (f"teacher.path={folder / 'teacher'}", "teacher.offload=false")),
        f"data.max_prompt_length={max_length // 2}",
        f"data.max_response_length={max_length - max_length // 2}",
        "data.train_batch_size=64",
        "actor.ppo_mini_batch_size=64",
        f"opd.train_tokens={micro_batch * max_length}",
        f"actor.log_prob_micro_batch_size_per_gpu={teacher_micro_batch}",
        "actor.param_offload=false",
        "actor.optimizer_offload=false",
        "trainer.gpus_per_node=1",
    ]
    overrides = [f"{ROLE}.actor.optim.total_training_steps=100", *settings]
    spec = load_text("kind: opd", sets=sets, overrides=overrides).spec
    composed = compose(spec, RunFacts(run_id="r", run_dir=None, valid_vocab=NUM_ENTRIES))
    composed.actor_rollout_ref.rollout.name = "none"
    OmegaConf.update(composed, f"{ROLE}.{KEY}", composed[KEY], force_add=True)
    OmegaConf.resolve(composed)
    worker = worker_class(config=composed.actor_rollout_ref, role=ROLE)
    worker.init_model()
    return worker


def random_rows(num_rows: int, prompt_tokens: int, response_tokens: int) -> TensorDict:
    """Rows as verl's V1 workers get them, every response token trained."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> list[list[int]]:
        return [torch.randint(0, NUM_ENTRIES, (count,), generator=generator).tolist() for _ in range(num_rows)]

    prompts, responses = draw(prompt_tokens), draw(response_tokens)
    data = tensordict([row(*pair) for pair in zip(prompts, responses, strict=True)])
    data["rollout_log_probs"] = nested([torch.zeros(response_tokens) for _ in range(num_rows)])
    cut_into_mini_batches(data, num_rows)
    return data
