"""Real checkpoints for the tests: tiny FSDP2 models on gloo, saved by verl's own checkpoint manager, sealed by `opd.runs`."""

import copy
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.ports import free_ports
from tests.rank_end import leave
from tests.update.models import save_model

from opd.runs.checkpoints import Checkpoints
from opd.runs.identity import settle_identity
from opd.runs.manifest import DRIVER_RANK
from opd.runs.shards import upload_shards
from opd.store.local import LocalStore

ROOT = Path(__file__).resolve().parents[2]
STEP = 7
SPEC_HASH = "5" * 64
# Odd, so that two ranks get unequal shards, and more than the tokenizer's 61.
VOCAB_ROWS = 67


@dataclass(frozen=True, kw_only=True)
class Case:
    """One checkpoint: its base model in bf16, trained in `dtype` on `world_size` ranks (`num_replicas` groups of them)."""

    tied: bool
    dtype: str
    world_size: int
    num_replicas: int = 1
    lora: bool = False

    @property
    def name(self) -> str:
        head = "tied" if self.tied else "untied"
        more = ("-hsdp" if self.num_replicas > 1 else "") + ("-lora" if self.lora else "")
        return f"{head}-{self.dtype}-{self.world_size}{more}"


CASES = [
    Case(tied=True, dtype="float32", world_size=1),
    Case(tied=False, dtype="bfloat16", world_size=1),
    Case(tied=True, dtype="bfloat16", world_size=2),
    Case(tied=False, dtype="float32", world_size=2),
    Case(tied=False, dtype="float32", world_size=2, num_replicas=2),
]

LORA_CASES = [
    Case(tied=False, dtype="bfloat16", world_size=2, lora=True),
    Case(tied=True, dtype="float32", world_size=1, lora=True),
]


def save_all(folder: Path, *, timeout_s: float = 240.0) -> None:
    """`folder/NAME/{actor, full.pt}` for each case: what verl saves, and the whole weights as the ranks hold them."""
    for tied in (True, False):
        base = save_model(base_model(folder, tied), hidden=64, layers=2, rows=VOCAB_ROWS, tied=tied, seed=1)
        _to_bf16(Path(base))
    (folder / "cases.pkl").write_bytes(pickle.dumps([*CASES, *LORA_CASES]))
    [port] = free_ports(1)
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONWARNINGS"] = "ignore"
    code = "import sys; from tests.convert.checkpoints import _main; _main(int(sys.argv[1]), *sys.argv[2:])"
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), str(port), str(folder)], env=environment)
        for rank in range(2)
    ]
    try:
        codes = [process.wait(timeout=timeout_s) for process in ranks]
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
    assert codes == [0, 0], f"saving processes ended with {codes}"


def base_model(folder: Path, tied: bool) -> Path:
    return folder / ("base-tied" if tied else "base-untied")


def full_weights(folder: Path, case: Case) -> dict[str, torch.Tensor]:
    """The weights as torch gathered them (of a LoRA student, as peft merged them) in the saving processes, without any code of the conversion."""
    return torch.load(folder / case.name / "full.pt", weights_only=True)


def seal(
    actor: Path, run_dir: Path, *, base: str, remote_url: str | None = None, world_size: int = 2, **sections: Any
) -> Path:
    """A copy of a saved actor as step 7 of a sealed run whose model is `base`; returns the step's folder."""
    from opd.store.remote import open_store

    local = LocalStore(run_dir)
    remote = open_store(remote_url) if remote_url else None
    spec = {"kind": "opd", "model": {"path": base}, **sections}
    stores = [local] if remote is None else [local, remote]
    settle_identity(stores, run_id=run_dir.name, spec_hash=SPEC_HASH, identity=spec, spec=spec, is_claimed=True)
    checkpoints = Checkpoints(local=local, remote=remote, attempt=1, spec_hash=SPEC_HASH)
    assert checkpoints.begin(STEP)
    step_dir = checkpoints.folder(STEP)
    shutil.copytree(actor, step_dir / "actor")
    for rank in range(world_size):
        for part in ("optim", "extra_state"):
            (step_dir / "actor" / f"{part}_world_size_{world_size}_rank_{rank}.pt").write_bytes(b"state " * 300)
    (step_dir / "data.pt").write_bytes(b"data position")
    reports = [
        upload_shards(rank=rank, step=STEP, step_dir=step_dir, store_url=remote_url)
        for rank in (DRIVER_RANK, *range(world_size))
    ]
    checkpoints.finalise(STEP, reports)
    return step_dir


def _to_bf16(base: Path) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(base).to(torch.bfloat16).save_pretrained(base)


def _main(rank: int, port: str, folder: str) -> None:
    """Both ranks save the cases of two ranks, then rank 0 alone the cases of one."""
    import torch.distributed as dist

    cases: list[Case] = pickle.loads((Path(folder) / "cases.pkl").read_bytes())
    for world_size in (2, 1):
        if rank >= world_size:
            continue
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
        for case in cases:
            if case.world_size == world_size:
                _save(case, Path(folder))
        dist.destroy_process_group()
    leave()


def _save(case: Case, folder: Path) -> None:
    """One 'training step' (seeded noise on every weight) under FSDP2, saved the way verl's FSDP engine saves."""
    import torch.distributed as dist
    from omegaconf import OmegaConf
    from peft import LoraConfig, get_peft_model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    base = base_model(folder, case.tied)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, case.dtype))
    model.config.update({"attn_implementation": "flash_attention_2"})  # as verl leaves the trainer's kernel there
    layers = model.model.layers
    generator = torch.Generator().manual_seed(2)
    if case.lora:  # as the trainer keeps one: the frozen model as it is, adapters in fp32
        config = LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", task_type="CAUSAL_LM")
        torch.manual_seed(3)  # every rank draws the same A
        model = get_peft_model(model, config, autocast_adapter_dtype=True)
    with torch.no_grad():
        for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
            parameter += (torch.randn(parameter.shape, generator=generator) * 0.02).to(parameter.dtype)
    shape, names = ((case.world_size,), ("fsdp",))
    if case.num_replicas > 1:
        shape, names = (case.num_replicas, case.world_size // case.num_replicas), ("ddp", "fsdp")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    full = copy.deepcopy(model).float().merge_and_unload().state_dict() if case.lora else None
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    if not case.tied:
        fully_shard(model.get_output_embeddings(), mesh=mesh)
    fully_shard(model, mesh=mesh)
    full = full or {name: value.full_tensor() for name, value in model.state_dict().items()}
    out = folder / case.name
    manager = FSDPCheckpointManager(
        model,
        processing_class=AutoTokenizer.from_pretrained(base),
        checkpoint_config=OmegaConf.create({"save_contents": ["model"], "load_contents": ["model"]}),
    )
    manager.save_checkpoint(str(out / "actor"), global_step=STEP)
    if dist.get_rank() == 0:
        torch.save(full, out / "full.pt")
