"""The registered divergences as functions of log-probabilities, their parameters, and a user's own."""

import math
import sys

import pytest
import torch
from pydantic import TypeAdapter
from tests.losses.cases import KINDS, make, run
from tests.losses.cases import divergence_by_hand as by_hand

from opd.experiment.algorithm import LossType
from opd.losses import DIVERGENCES, Loss, divergence, divergence_of, register_divergence
from opd.losses.divergences import log_probs

WHOLE = [kind for kind in KINDS if kind != "topk_reverse_kl"]


def logits(rows: int, vocab: int, seed: int, scale: float = 2.0) -> torch.Tensor:
    return scale * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_every_registered_kind_is_tested_against_its_formula_and_a_name_in_the_experiment_file():
    assert set(KINDS) == set(DIVERGENCES)
    *names, _ = TypeAdapter(LossType).json_schema()["pattern"].removeprefix("^(").split("|")
    assert set(names) == set(DIVERGENCES)


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("scale", [0.01, 2.0, 20.0])
def test_a_divergence_of_logits_is_its_formula_at_every_temperature(kind, scale):
    student, teacher, ids = logits(5, 40, 1, scale), logits(5, 40, 2, scale), torch.arange(5)
    found = divergence(student, teacher, kind, temperature=1.7, ids=ids, **KINDS[kind])
    exact = by_hand(kind, (student / 1.7).log_softmax(-1), (teacher / 1.7).log_softmax(-1), ids)
    torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-15)


EXTREMES = {
    "huge": torch.tensor([[3e4, -3e4, 0.0, 1e4]]),
    "near the end of fp32": torch.tensor([[3e38, -3e38, 0.0, 1.0]]),
    "one-hot": torch.tensor([[0.0, 1e4, 0.0, 0.0]]),
    "one-hot by -inf": torch.tensor([[0.0, -torch.inf, -torch.inf, -torch.inf]]),
    "flat": torch.zeros(1, 4),
}


@pytest.mark.parametrize("teacher", EXTREMES.values(), ids=EXTREMES.keys())
@pytest.mark.parametrize("student", EXTREMES.values(), ids=EXTREMES.keys())
@pytest.mark.parametrize("kind", WHOLE)
def test_value_and_gradient_stay_finite_at_the_extremes(kind, student, teacher):
    log_s = log_probs(student, 1.0).requires_grad_()
    value = divergence_of(kind).function(log_s, log_probs(teacher, 1.0), torch.tensor([1]), KINDS[kind])
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert torch.isfinite(log_s.grad).all()


REFUSED = {
    "kl": ("kl", {}, "reverse_kl, forward_kl, jsd"),
    "no beta": ("jsd", {}, "0 < beta < 1"),
    "beta 1": ("jsd", {"beta": 1.0}, "0 < beta < 1"),
    "beta nan": ("jsd", {"beta": math.nan}, "0 < beta < 1"),
    "skew 0": ("skew_kl", {"skew": 0}, "0 < skew < 1"),
    "half a token": ("topk_reverse_kl", {"top_k": 1.5}, "whole number from 1"),
    "no token": ("reverse_kl", {"top_k": 0}, "whole number from 1"),
    "another's parameter": (
        "reverse_kl",
        {"beta": 0.5},
        "parameters {'beta': 0.5}: divergence reverse_kl has no parameter 'beta'; use one of top_k",
    ),
    "no module": ("nowhere:skew", {}, "PYTHONPATH"),
    "no function": ("math:skew", {}, "PYTHONPATH"),
    "no callable": ("math:pi", {}, "not a function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_is_not_defined_is_refused_by_name(name):
    kind, params, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        Loss(kind, params)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature"):
        Loss(temperature=temperature)


def test_unequal_vocabularies_are_refused_rather_than_filled():
    with pytest.raises(ValueError, match="same shape"):
        divergence(torch.zeros(1, 3), torch.zeros(1, 2), "reverse_kl")


def test_a_users_function_needs_no_fork(tmp_path, monkeypatch):
    (tmp_path / "my_losses.py").write_text(
        "def squared(log_s, log_t, ids, params):\n"
        "    return params['factor'] * (log_s.exp() - log_t.exp()).square().sum(-1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    loss = Loss("my_losses:squared", {"factor": 3.0})
    log_s, log_t = logits(2, 9, 1).log_softmax(-1), logits(2, 9, 2).log_softmax(-1)
    found = loss.divergence.function(log_s, log_t, torch.zeros(2), loss.params)
    torch.testing.assert_close(found, 3 * (log_s.exp() - log_t.exp()).square().sum(-1))
    del sys.modules["my_losses"]


def test_a_registered_function_is_a_kind_of_head_loss(monkeypatch):
    monkeypatch.setitem(KINDS, "twice", {})
    monkeypatch.delitem(DIVERGENCES, "twice", raising=False)
    register_divergence("twice")(
        lambda log_s, log_t, ids, params: 2 * DIVERGENCES["reverse_kl"].function(log_s, log_t, ids, params)
    )
    try:
        assert run(make(), "twice").loss == 2 * run(make(), "reverse_kl").loss
    finally:
        del DIVERGENCES["twice"]
