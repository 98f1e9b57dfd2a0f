"""Weights read from files: the values that the files hold, in the dtype that each engine keeps, and no copy made on the way."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.update.models import save_model, uneven_rows
from tests.update.workers import Case, run_cases
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from verl.workers.config import FSDPEngineConfig
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from opd.compat.loading import sharded_before_they_come, stored_dtype
from opd.update.head_engine import HeadEngine


def _stored_as(path: str, dtype: torch.dtype, *, but: tuple[str, ...] = ()) -> str:
    """The folder `path` of a model, its files rewritten in `dtype` but for the weights with one of these in their names."""
    for file in Path(path).glob("*.safetensors"):
        tensors = load_file(file)
        save_file(
            {n: t if any(part in n for part in but) else t.to(dtype) for n, t in tensors.items()},
            file,
            {"format": "pt"},
        )
    return path


class TestStoredDtype:
    def test_is_that_of_the_only_file_whatever_else_lies_there(self, tmp_path):
        save_file({"x": torch.ones(2), "y": torch.ones(3)}, tmp_path / "model.safetensors")
        save_file({"x": torch.ones(2).bfloat16()}, tmp_path / "adapter_model.safetensors")
        assert stored_dtype(str(tmp_path)) == torch.float32

    @pytest.mark.parametrize(
        ("other", "dtype"),
        [(torch.bfloat16, torch.bfloat16), (torch.float32, None), (torch.int8, None)],
        ids=["alike", "wider", "integers"],
    )
    def test_is_that_of_all_files_of_an_index_or_none(self, tmp_path, other, dtype):
        save_file({"x": torch.ones(2).bfloat16()}, tmp_path / "1.safetensors")
        save_file({"y": torch.ones(2).to(other)}, tmp_path / "2.safetensors")
        index = {"weight_map": {"x": "1.safetensors", "y": "2.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        assert stored_dtype(str(tmp_path)) == dtype


class TestRead:
    """Return the dtype that verl gets, and the dtypes of the engine and the model afterwards."""

    @pytest.mark.parametrize(("is_lora", "read"), [(False, "bf16"), (True, "fp32")], ids=["whole", "LoRA"])
    def test_a_model_is_read_as_it_is_stored_but_for_adapters(self, tmp_path, monkeypatch, is_lora, read):
        seen = []

        def build(engine: FSDPEngineWithLMHead) -> nn.Module:
            seen.append(engine.engine_config.model_dtype)
            module = nn.Linear(2, 2, bias=False)
            module.config = SimpleNamespace(dtype=torch.bfloat16)
            module.get_output_embeddings = lambda: module
            return module

        monkeypatch.setattr(FSDPEngineWithLMHead, "_build_module", build)
        save_file({"x": torch.ones(2).bfloat16()}, tmp_path / "model.safetensors")
        engine = object.__new__(HeadEngine)
        engine.engine_config = kept = FSDPEngineConfig(model_dtype="fp32", use_torch_compile=False)
        engine.model_config = SimpleNamespace(model_type="ours", local_path=str(tmp_path))
        engine.use_ulysses_sp, engine._is_lora = False, is_lora
        module = engine._build_module()
        assert seen == [read]
        assert engine.engine_config is kept
        assert engine.model_config.model_type == "ours"
        assert module.config.dtype == torch.float32


class TestShardedBeforeTheyCome:
    @pytest.fixture
    def group(self) -> Iterator[None]:
        distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
        yield
        distributed.destroy_process_group()

    def test_a_model_is_sharded_without_memory_and_gets_it_in_the_wanted_dtype(self, group, monkeypatch):
        seen = []

        def shard(module: nn.Module, options: dict[str, Any], config: None) -> None:
            seen.extend(parameter.is_meta for parameter in module.parameters())
            fully_shard(module, **options)

        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 3)).bfloat16()
        model[1].weight = model[0].weight
        model[2].weight.requires_grad_(False)
        monkeypatch.setattr(transformer_impl, "apply_fsdp2", shard)
        with sharded_before_they_come(torch.float32):
            transformer_impl.apply_fsdp2(model, {"mesh": distributed.init_device_mesh("cpu", (1,))}, None)
        assert seen == [True] * 3
        assert transformer_impl.apply_fsdp2 is shard
        assert model[1].weight is model[0].weight
        assert [parameter.requires_grad for parameter in model.parameters()] == [True, False, True]
        assert {(parameter.dtype, str(parameter.device)) for parameter in model.parameters()} == {
            (torch.float32, "cpu")
        }


class TestNeeded:
    """Each fails when verl needs it no more."""

    def test_verl_still_casts_buffers_with_the_weights(self):
        source = inspect.getsource(transformer_impl.FSDPEngine._build_module)
        assert "module.to(torch_dtype)" in source
        assert torch.nn.BatchNorm1d(1).to(torch.bfloat16).running_mean.dtype == torch.bfloat16

    def test_verl_still_shards_weights_that_it_sends_again(self):
        source = inspect.getsource(transformer_impl.FSDPEngine._build_fsdp_module)
        steps = ["module.state_dict()", "apply_fsdp2(module, ", "fsdp2_load_full_state_dict(module, full_state, "]
        places = [source.find(step) for step in steps]
        assert -1 not in places
        assert places == sorted(places)


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestEngines:
    """The student keeps fp32 and the teacher bf16, on two ranks."""

    @pytest.fixture(scope="class")
    def folders(self, tmp_path_factory) -> dict[str, str]:
        base = tmp_path_factory.mktemp("models")
        student = {"hidden": 32, "layers": 2, "rows": 64, "tied": True, "seed": 1}
        teacher = {"hidden": 48, "layers": 2, "rows": 96, "tied": False, "seed": 2}
        return {
            "tied bf16": _stored_as(save_model(base / "1", **student), torch.bfloat16),
            "tied fp32": save_model(base / "2", **student),
            "bf16": _stored_as(save_model(base / "3", **teacher), torch.bfloat16),
            "fp32": save_model(base / "4", **teacher),
            "norms in fp32": _stored_as(save_model(base / "5", **teacher), torch.bfloat16, but=("norm",)),
        }

    @pytest.fixture(scope="class")
    def runs(self, folders) -> dict[tuple[str, str], dict]:
        pairs = [("tied bf16", "bf16"), ("tied fp32", "fp32"), ("norms in fp32", "norms in fp32")]
        cases = [
            Case(
                student=folders[student],
                teacher=folders[teacher],
                rows=uneven_rows(),
                micro_batch=2,
                sets=["teacher.dtype=bf16"],
            )
            for student, teacher in pairs
        ]
        return dict(zip(pairs, run_cases(cases, world=2), strict=True))

    def test_weights_are_those_of_the_files_in_each_engines_dtype(self, folders, runs):
        for pair, run in runs.items():
            for name, found, dtype in zip(
                pair, ("weights_before", "teacher_weights"), (torch.float32, torch.bfloat16), strict=True
            ):
                stored = load_file(Path(folders[name]) / "model.safetensors")
                assert stored.keys() <= run[found].keys()
                for key, weight in stored.items():
                    assert run[found][key].dtype == dtype
                    assert torch.equal(run[found][key], weight.to(dtype)), (pair, key)

    def test_head_and_embedding_that_share_a_weight_go_on_sharing_it(self, runs):
        run = runs["tied bf16", "bf16"]
        head, embedding = (run["weights"][f"{name}.weight"] for name in ("lm_head", "model.embed_tokens"))
        assert torch.equal(head, embedding)
        assert not torch.equal(head, run["weights_before"]["lm_head.weight"])

    def test_positions_are_not_rounded_with_the_weights(self, runs):
        """Qwen3's rotary frequencies: 10,000^(-2i / head_dim), of heads of 16."""
        exact = 1 / 10_000 ** (torch.arange(0, 16, 2) / 16)
        for run in runs.values():
            for buffers in run["buffers"].values():
                found = {name: buffer for name, buffer in buffers.items() if name.endswith("rotary_emb.inv_freq")}
                assert len(found) == 1
                for buffer in found.values():
                    assert buffer.dtype == torch.float32
                    assert torch.allclose(buffer, exact, rtol=1e-6)
