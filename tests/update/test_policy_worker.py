"""Updates of GRPO are verl's formulas, and of SFT cross-entropy, over a float64 model, however their rows are cut and shared."""

from typing import Any

import pytest
import torch
from tests.update.exact import (
    DYNAMIC,
    ULYSSES,
    actor_config,
    check_answers,
    check_bits,
    check_gradients,
    cut,
    in_ways,
    load,
    log_probs,
    of_answers,
    run,
    verls_loss,
)
from tests.update.models import uneven_rows
from tests.update.workers import Case, told_log_probs
from torch.nn.utils.rnn import pad_sequence
from verl.trainer.ppo.core_algos import agg_loss

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROWS = uneven_rows()
CLIPS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
SETS = ("kl_loss_coef=0.1", "kl_loss_type=low_var_kl", "entropy_coeff=0.01", *(f"{k}={v}" for k, v in CLIPS.items()))
LORA = ("model.lora.rank=3", "model.lora.alpha=6", "actor.learning_rate=3e-2")
MASK = pad_sequence([torch.tensor(row["mask"]) for row in ROWS], batch_first=True).bool()
TOKEN_MEAN = ("vanilla", "token-mean")
ANSWER_WAYS = [(1, "padded"), (1, "8 micro-batches"), (1, "token budget"), (2, "all"), (2, "shared sequence")]
UNEVEN = (1, "answers, measured by more rows than divide them")
ANSWERED = [*((world, f"answers, {name}") for world, name in ANSWER_WAYS), UNEVEN]
# Modes of loss and aggregation, and how rows are cut.
FORMS: dict[tuple[int, str], tuple[tuple[str, str], dict[str, Any]]] = {
    (1, "all"): (TOKEN_MEAN, {}),
    (1, "a mean over rows"): (("vanilla", "seq-mean-token-mean"), {"micro_batch": 1}),
    (1, "gspo"): (("gspo", "seq-mean-token-mean"), {"micro_batch": 2}),
    (1, "cispo"): (("cispo", "seq-mean-token-sum"), {"overrides": DYNAMIC}),
    (2, "all"): (TOKEN_MEAN, {"micro_batch": 2}),
    (2, "shared sequence"): (TOKEN_MEAN, {"micro_batch": 4, "overrides": ULYSSES}),
}


def read_by(plain: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies of the responses' tokens, padded [B, T]."""
    found = []
    for row in ROWS:
        log_p = log_probs(plain, row["prompt"], row["response"], 64)
        picked = log_p.gather(1, torch.tensor(row["response"])[:, None])[:, 0]
        found.append(torch.stack([picked, -(log_p.exp() * log_p).sum(-1)], 1))
    both = pad_sequence(found, batch_first=True)
    return both[..., 0], both[..., 1]


def expected(plain: torch.nn.Module, loss_mode: str, agg_mode: str) -> tuple[float, dict[str, torch.Tensor]]:
    """Return verl's loss of all rows as one mini-batch, and its gradients."""
    config = actor_config(loss_mode, agg_mode, kl_loss_coef=0.1, **CLIPS)
    responses = pad_sequence([torch.tensor(row["response"]).double() for row in ROWS], batch_first=True)
    log_prob, entropy = read_by(plain)
    loss, _ = verls_loss(
        config,
        MASK,
        current=log_prob,
        old=told_log_probs(responses, "old"),
        advantages=torch.sin(responses),
        reference=told_log_probs(responses, "reference"),
        kl="low_var_kl",
    )
    loss = loss - 0.01 * agg_loss(entropy, MASK, agg_mode, **config.global_batch_info)
    plain.zero_grad()
    loss.backward()
    return loss.item(), {name: parameter.grad.clone() for name, parameter in plain.named_parameters()}


@pytest.fixture(scope="module")
def answers(pair) -> Case:
    return Case(student=pair["student"], teacher=pair["student"], rows=ROWS, method="answers")


@pytest.fixture(scope="module")
def runs(pair, answers, tmp_path_factory) -> dict:
    folder = str(tmp_path_factory.mktemp("saved") / "global_step_1")
    case = Case(
        student=pair["student"],
        teacher=pair["student"],
        rows=ROWS,
        method="policy",
        sets=[f"grpo.{each}" for each in SETS],
    )
    # Two steps of two updates each.
    steps = cut(case, method="policy steps", num_steps=2, mini_batch=4, micro_batch=2)
    forms = {}
    for name, ((loss_mode, agg_mode), way) in FORMS.items():
        modes = [f"actor_rollout_ref.actor.policy_loss.loss_mode={loss_mode}", *way.get("overrides", ())]
        forms[name] = cut(case, **way | {"sets": [f"grpo.loss_agg_mode={agg_mode}"], "overrides": modes})
    answered = dict(zip(ANSWERED, in_ways(answers, *ANSWER_WAYS).values(), strict=False))
    return run(
        forms
        | answered
        | {
            UNEVEN: cut(answers, sets=["actor.log_prob_micro_batch_size_per_gpu=3"]),
            (1, "exact KL"): cut(case, sets=["grpo.kl_loss_type=full"]),
            (1, "whole"): cut(steps, saves_to=folder),
            (1, "resumed"): cut(steps, resumes_from=folder),
            (1, "adapters"): cut(steps, sets=LORA),
        }
    )


@pytest.fixture(scope="module")
def plain(pair) -> torch.nn.Module:
    return load(pair["student"], attn_implementation="eager")


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_update_is_verls_formula_in_float64_however_rows_are_cut(runs, plain, form):
    found = runs[form]
    assert "error" not in found, found["error"]
    loss, gradients = expected(plain, *FORMS[form][0])
    assert found["update"]["actor/loss"] == pytest.approx(loss, rel=1e-5)
    check_gradients(found, gradients, 1e-5)
    if form[0] == 1:
        with torch.no_grad():
            log_prob = read_by(plain)[0][MASK]
        for role in ("actor", "ref"):
            torch.testing.assert_close(found["log_probs"][role].double(), log_prob, rtol=1e-5, atol=1e-5)


def test_the_exact_kl_to_the_reference_is_zero_where_the_model_is_its_reference(runs):
    assert runs[1, "exact KL"]["update"]["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)


def test_a_killed_run_goes_on_bit_for_bit(runs):
    whole, resumed = runs[1, "whole"], runs[1, "resumed"]
    assert not torch.equal(whole["weights"]["lm_head.weight"], whole["weights_before"]["lm_head.weight"])
    check_bits(resumed, whole, "weights_before", "weights")
    told = {name: each for name, each in whole["update"].items() if name.startswith("actor/") and "/perf/" not in name}
    assert told == {name: resumed["update"][name] for name in told}


def test_adapters_train_against_the_model_without_them(runs, plain):
    found = runs[1, "adapters"]
    for name, weight in found["weights"].items():
        assert torch.equal(weight, found["weights_before"][name]) == (".lora_" not in name), name
    with torch.no_grad():
        log_prob = read_by(plain)[0][MASK]
    torch.testing.assert_close(found["log_probs"]["ref"].double(), log_prob, rtol=1e-5, atol=1e-5)
    assert found["update"]["actor/kl_loss"] > 0


@pytest.mark.parametrize("way", ANSWERED, ids=str)
def test_answers_train_by_the_cross_entropy_of_transformers_in_float64(runs, answers, way):
    found, reference = runs[way], of_answers(answers)
    check_answers(found, reference)
    assert found["measured"] == pytest.approx(reference["metrics"]["opd/loss"], rel=1e-6)
    assert found["update"]["actor/num_tokens"] == sum(sum(row["mask"]) for row in ROWS)
    assert (found["update"]["actor/num_updates"], found["update"]["actor/skipped"]) == (1, 0)
    assert not found["has_rollout"]
