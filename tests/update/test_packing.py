"""The probe of packing on tiny models of several families: packed rows, rows one by one, or a refusal."""

from collections.abc import Sequence

import pytest
import torch
import transformers
from tests.update.exact import check, expected
from tests.update.models import save_tokenizer, uneven_rows
from tests.update.workers import Case, run_cases
from torch import Tensor
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

from opd.compat import replaced
from opd.errors import Unfit
from opd.update.attention import VARLEN, row_arguments
from opd.update.packing import LONG, may_pack, probe_rows

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
LINEAR = {f"linear_{name}": size for name, size in (
    ("conv_kernel_dim", 4), ("key_head_dim", 8), ("value_head_dim", 8), ("num_key_heads", 2), ("num_value_heads", 4),
)}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def _nemotron() -> transformers.PreTrainedModel:
    sizes = {name: size for name, size in SIZES.items() if name != "num_hidden_layers"}
    mamba = {"mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 1, "ssm_state_size": 8, "chunk_size": 8}
    blocks = ["mamba", "mlp", "mamba", "attention"]
    config = transformers.NemotronHConfig(**sizes, **mamba, layers_block_type=blocks)
    return transformers.NemotronHForCausalLM(config)


def _qwen3_next() -> transformers.PreTrainedModel:
    config = transformers.Qwen3NextConfig(**SIZES, **LINEAR, **EXPERTS, shared_expert_intermediate_size=16)
    return transformers.Qwen3NextForCausalLM(config)


def _gpt_oss() -> transformers.PreTrainedModel:
    model = transformers.GptOssForCausalLM(
        transformers.GptOssConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=16)
    )
    for layer in model.model.layers:
        torch.nn.init.constant_(layer.self_attn.sinks, 1.0)
    return model


def _gemma2() -> transformers.PreTrainedModel:
    config = transformers.Gemma2Config(**SIZES, attn_logit_softcapping=0.5, query_pre_attn_scalar=1, sliding_window=16)
    model = transformers.Gemma2ForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:  # logits beyond the cap
            layer.self_attn.q_proj.weight.mul_(100.0)
    return model


FAMILIES = {
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=30)),
    "qwen3_5": lambda: Qwen3_5ForCausalLM(Qwen3_5TextConfig(**SIZES, **LINEAR)),
    "qwen3_next": _qwen3_next,
    "nemotron_h": _nemotron,
    "gpt_oss": _gpt_oss,
    "gemma2": _gemma2,
}


def _windowed_varlen(query, key, value, bounds, _bounds, longest, _longest, scale=None, window_size=(-1, 0)):
    """Compute what torch's kernel computes, on a CPU."""
    out = torch.empty_like(query)
    repeats = query.shape[1] // key.shape[1]
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        whole = (query, key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1))
        q, k, v = (states[begin:end].transpose(0, 1) for states in whole)
        places = torch.arange(end - begin)
        back = places[:, None] - places
        seen = (back >= 0) & (back <= (window_size[0] if window_size[0] >= 0 else end))
        scores = (q @ k.transpose(1, 2) * (scale or q.shape[-1] ** -0.5)).masked_fill(~seen, -torch.inf)
        out[begin:end] = (scores.softmax(-1) @ v).transpose(0, 1)
    return out


def _probe(model: transformers.PreTrainedModel) -> bool:
    seen: list[Tensor] = []
    model.eval().get_output_embeddings().register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))

    def packed(rows: Sequence[Tensor]) -> Tensor:
        places = torch.cat([torch.arange(len(row)) for row in rows])[None]
        bounds = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
        ids = torch.cat(list(rows))[None]
        rows_of = row_arguments(model.config._attn_implementation, bounds, ids.shape[1])
        model(input_ids=ids, position_ids=places, use_cache=False, **rows_of)
        return seen.pop()

    def alone(rows: Sequence[Tensor]) -> Tensor:
        with replaced(model.config, _attn_implementation="eager"):
            model(input_ids=rows[0][None], use_cache=False)
        return seen.pop()

    return may_pack(model, "model m", packed=packed, alone=alone, dtype=torch.float32)


@pytest.fixture(autouse=True)
def _varlen_on_a_cpu(monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", _windowed_varlen)
    torch.manual_seed(0)


@pytest.mark.parametrize("family", ["qwen3", "mistral"])
@pytest.mark.parametrize("attention", ["sdpa", VARLEN])
def test_attention_with_bounds_and_windows_may_pack(family, attention):
    model = FAMILIES[family]()
    model.set_attn_implementation(attention)
    assert _probe(model)
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next", "nemotron_h"])
def test_layers_that_carry_a_state_from_row_to_row_need_each_row_alone(family, caplog):
    assert not _probe(FAMILIES[family]())
    assert "model m: rows that share a pack change each other" in caplog.text


@pytest.mark.parametrize("family", ["gpt_oss", "gemma2"])
def test_attention_without_sinks_or_soft_caps_is_refused_with_the_layers(family):
    model = FAMILIES[family]()
    model.set_attn_implementation(VARLEN)
    with pytest.raises(Unfit, match=r"model m: attn_implementation=varlen .* that \w*Attention needs"):
        _probe(model)


def test_an_attention_that_drops_the_window_is_refused(monkeypatch):
    def without_window(*args, **kwargs):
        return _windowed_varlen(*args, **kwargs | {"window_size": (-1, 0)})

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", without_window)
    model = FAMILIES["mistral"]()
    model.set_attn_implementation(VARLEN)
    with pytest.raises(Unfit, match="a window"):
        _probe(model)


def test_a_row_is_longer_than_the_smallest_window_and_never_longer_than_the_limit():
    for window, longest in ((None, LONG), (30, 50), (4095, 4096), (100_000, 4096)):
        config = transformers.MistralConfig(**SIZES, sliding_window=window)
        assert [len(row) for row in probe_rows(config)][1] == longest


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_update_with_linear_attention_equals_whole_models_row_by_row(pair, tmp_path):
    hybrid = tmp_path / "hybrid"
    config = transformers.Qwen3NextConfig(**SIZES, **LINEAR, **EXPERTS, mlp_only_layers=[0, 1, 2, 3])
    transformers.Qwen3NextForCausalLM(config).save_pretrained(hybrid)
    save_tokenizer(hybrid)
    pairs = ((pair["student"], str(hybrid)), (str(hybrid), pair["teacher"]))
    cases = [Case(student=student, teacher=teacher, rows=uneven_rows()) for student, teacher in pairs]
    results = run_cases(cases)
    for case, result in zip(cases, results, strict=True):
        check(result, expected(case))
