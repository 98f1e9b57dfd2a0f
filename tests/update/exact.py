"""Losses and gradients of whole models in float64, the ways in which tests cut a batch, and comparisons of results."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.update.models import VOCAB
from tests.update.workers import NOT_COMPARED, Case, run_cases
from torch import Tensor
from transformers import AutoModelForCausalLM
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig

DYNAMIC = [
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=32",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=32",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=64",
]
ULYSSES = ["actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"]
LEFT_TO_THE_PLAN = [f"actor.{key}=auto" for key in ("param_offload", "optimizer_offload", "gradient_checkpointing")]
WAYS: dict[tuple[int, str], dict[str, Any]] = {
    (1, "all"): {},
    (1, "padded"): {"remove_padding": False, "micro_batch": 4},
    (1, "8 micro-batches"): {"micro_batch": 1},
    (1, "token budget"): {"overrides": DYNAMIC},
    (1, "left to the plan"): {"sets": LEFT_TO_THE_PLAN},
    (2, "all"): {"micro_batch": 4},
    (2, "padded"): {"remove_padding": False, "micro_batch": 2},
    (2, "8 micro-batches"): {"micro_batch": 1},
    (2, "token budget"): {"micro_batch": 4, "overrides": DYNAMIC},
    (2, "shared sequence"): {"micro_batch": 2, "overrides": ULYSSES},
}
"""The cut of a case's rows, by the number of ranks and a name."""
OF_SEVERAL_TEACHERS = [run for run in WAYS if run != (2, "shared sequence")]
"""The ways of several teachers; a rule refuses the other one."""


def cut(case: Case, **way: Any) -> Case:
    """Return the case in another way, its own overrides and settings before the added ones."""
    added = {key: [*getattr(case, key), *way.pop(key, ())] for key in ("overrides", "sets")}
    return dataclasses.replace(case, **added, **way)


def in_all_ways(case: Case) -> dict[tuple[int, str], Case]:
    return in_ways(case, *(OF_SEVERAL_TEACHERS if case.teachers else WAYS))


def in_ways(case: Case, *ways: tuple[int, str]) -> dict[tuple[int, str], Case]:
    return {way: cut(case, **WAYS[way]) for way in ways}


def run(cases: dict[tuple[int, str], Case]) -> dict[tuple[int, str], dict[str, Any]]:
    """Return the cases' results; all cases of one number of ranks share their processes."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for world in sorted({run[0] for run in cases}):
        some = {run: case for run, case in cases.items() if run[0] == world}
        found |= dict(zip(some, run_cases(list(some.values()), world=world), strict=True))
    return found


def load(path: str, **options: Any) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, **options)


def log_probs(model: Callable, prompt: list[int], response: list[int], vocab: int = VOCAB) -> Tensor:
    """Return [response, vocab] of one row alone."""
    logits = model(input_ids=torch.tensor([prompt + response])).logits
    return logits[0, len(prompt) - 1 : -1, :vocab].log_softmax(-1)


def reverse_kl(row: dict, own: Tensor, wanted: Tensor) -> dict[str, Tensor]:
    kl = (own.exp() * (own - wanted)).sum(-1)
    return {"opd/loss": row["weight"] * kl, "opd/divergence": kl.detach()}


OfRow = Callable[[dict, Tensor, Tensor], dict[str, Tensor]]


def expected(
    case: Case,
    of_row: OfRow = reverse_kl,
    *,
    student: Callable | None = None,
    leaves: dict[str, Tensor] | None = None,
    vocab: int = VOCAB,
    mode: str = "token-mean",
    **options: Any,
) -> dict[str, Any]:
    """Return means over trained tokens or rows, gradients of `opd/loss`, and each row's divergences.

    Args:
        of_row: (row, log p_S [n, V], log p_T) -> values of each token by the metric's name.
        student, leaves: another form of the student, and the weights of its gradient.
        mode: as `opd.loss_agg_mode`.
        options: of the loading of teachers.
    """
    if student is None:
        student = load(case.student)
        leaves = dict(student.named_parameters())
    teachers = [load(path, **options) for path in (list(case.teachers.values()) or [case.teacher])]
    sums: dict[str, Tensor] = {}
    num, rows = 0, []
    for row in case.rows:
        mask = torch.tensor(row["mask"], dtype=torch.bool)
        with torch.no_grad():
            prompt = row.get("teacher_prompt", row["prompt"])
            wanted = log_probs(teachers[row["teacher"]], prompt, row["response"], vocab)
        tokens = of_row(row, log_probs(student, row["prompt"], row["response"], vocab), wanted)
        for name, values in tokens.items():
            size = max(int(mask.sum()), 1) if mode == "seq-mean-token-mean" else 1
            sums[name] = sums.get(name, 0) + values[mask].sum() / size
        num += int(mask.sum()) if mode == "token-mean" else int(mask.any())
        rows.append(tokens.get("opd/divergence", values)[mask].detach().numpy())
    (sums["opd/loss"] / num).backward()
    gradients = {name: leaf.grad for name, leaf in (leaves or {}).items() if leaf.requires_grad}
    return {"metrics": {name: value.item() / num for name, value in sums.items()}, "gradients": gradients, "rows": rows}


def of_answers(case: Case, **options: Any) -> dict[str, Any]:
    """Return `expected` of -log p over every row of the head, which is verl's cross-entropy."""

    def nll(row: dict, own: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        return {"opd/loss": -own.gather(1, torch.tensor(row["response"])[:, None])[:, 0]}

    return expected(case, nll, vocab=64, **options)


def actor_config(loss_mode: str, agg_mode: str, *, dro_beta: float | None = 0.5, **options: Any) -> ActorConfig:
    """Return verl's settings of a policy loss."""
    policy = PolicyLossConfig(loss_mode=loss_mode, dro_beta=dro_beta)
    common = {"strategy": "fsdp2", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1}
    return ActorConfig(**common, loss_agg_mode=agg_mode, policy_loss=policy, **options)


def verls_loss(
    config: ActorConfig,
    mask: Tensor,
    *,
    current: Tensor,
    old: Tensor,
    advantages: Tensor,
    reference: Tensor,
    kl: str | None,
) -> tuple[Tensor, dict[str, Any]]:
    """Return verl's policy loss of padded rows as one mini-batch, with its KL to a reference, and the loss's metrics."""
    sizes = {"batch_num_tokens": int(mask.sum()), "global_batch_size": len(mask), "dp_size": 1}
    config.global_batch_info.update(sizes, loss_scale_factor=config.loss_scale_factor)
    loss, metrics = get_policy_loss_fn(config.policy_loss.loss_mode)(
        old_log_prob=old,
        log_prob=current,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode=config.loss_agg_mode,
        config=config,
    )
    if kl is not None:
        estimate = kl_penalty(current, reference, kl)
        loss = loss + config.kl_loss_coef * agg_loss(estimate, mask, config.loss_agg_mode, **config.global_batch_info)
    return loss, metrics


def check_answers(found: dict, wanted: dict) -> None:
    assert found["update"]["actor/loss"] == pytest.approx(wanted["metrics"]["opd/loss"], rel=1e-6)
    check_gradients(found, wanted["gradients"], 1e-5)


def check(found: dict, wanted: dict) -> None:
    """Compare metrics and whole gradients with the result of `expected`."""
    assert "error" not in found, found["error"]
    for name, value in wanted["metrics"].items():
        assert found["metrics"][name] == pytest.approx(value, rel=1e-5), name
    check_gradients(found, wanted["gradients"])


def check_gradients(found: dict, wanted: dict[str, Tensor], tolerance: float = 1e-4) -> None:
    assert found["gradients"].keys() == wanted.keys()
    for name, gradient in wanted.items():
        difference = (found["gradients"][name].double() - gradient).norm()
        assert difference <= tolerance * gradient.norm() + 1e-12, name


def check_counts(found: dict, reference: dict, tolerance: float = 1e-5) -> None:
    """Compare all that two runs count, their times and memory apart."""
    for name, value in reference["metrics"].items():
        if not name.startswith(("timing/", "perf/", *NOT_COMPARED)):
            assert found["metrics"][name] == pytest.approx(value, rel=tolerance, abs=1e-7, nan_ok=True), name


def check_same(found: dict, reference: dict, tolerance: float = 1e-5) -> None:
    """Compare the counts and gradients of two runs."""
    check_counts(found, reference, tolerance)
    check_gradients(found, reference["gradients"], tolerance)


def check_bits(found: dict, reference: dict, *parts: str) -> None:
    for part in parts or ("weights",):
        for name, weight in reference[part].items():
            assert torch.equal(found[part][name], weight), (part, name)
