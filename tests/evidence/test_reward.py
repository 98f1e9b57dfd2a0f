"""The study of a reward in the same update: what its cells are, what is judged, and a small whole run of it."""

from __future__ import annotations

import pytest
import torch
from tests.evidence import additions, reward

from opd.batch import RolloutRows
from opd.config.algorithm import Policy
from opd.data.toy.task import Problem
from opd.importance.stages import Weights
from opd.worker.student_task import policy_loss

PROBLEMS = [Problem(48, 75), Problem(7, 34), Problem(99, 1)]


def _rows(tokenizer, answers=("123", "041", "001")) -> RolloutRows:
    prompts = additions.prompt_ids(tokenizer, PROBLEMS)
    said = tokenizer([answer + tokenizer.eos_token for answer in answers], return_tensors="pt")["input_ids"]
    return RolloutRows(
        input_ids=torch.cat([prompts, said], dim=1).flatten(),
        prompt_lens=torch.full((3,), prompts.shape[1]),
        response_lens=torch.full((3,), 4),
        response_mask=torch.ones(12, dtype=torch.bool),
    )


def test_only_a_right_answer_scores(tokenizer):
    assert additions.are_right(_rows(tokenizer), PROBLEMS) == [True, True, False]


def test_each_cell_has_the_weights_that_its_name_says():
    last = reward.NUM_UPDATES - 1
    of = {name: (reward.weights_at(cell, 0), reward.weights_at(cell, last)) for name, cell in reward.CELLS.items()}
    w = reward.POLICY_WEIGHT
    assert of["kl"] == of["worn_kl"] == ((1, 0), (1, 0))
    assert of["reward"] == ((0, w), (0, w))
    assert of["kl_reward"] == of["worn_kl_reward"] == ((1, w), (1, w))
    assert of["worn_kl_to_reward"] == ((1, w), (0, w))
    middle = reward.weights_at(reward.CELLS["worn_kl_to_reward"], last // 2)
    assert 0.4 < middle.divergence < 0.6


def test_the_primary_comparisons_name_cells_and_parts():
    assert len(reward.primary()) == 2
    for one in reward.primary():
        assert {one.cell, *one.controls} <= set(reward.CELLS)
        assert one.margin == 2


def test_a_policy_of_advantage_0_has_the_divergences_gradient(tokenizer, student):
    rows, loss = _rows(tokenizer), policy_loss(Policy())
    gradients = []
    for weights in (Weights(1.0, 0.0), Weights(1.0, 5.0)):
        student.zero_grad()
        reward.update_loss(student, student, rows, "forward_kl", weights, torch.zeros(3), loss).backward()
        gradients.append(student.lm_head.weight.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_step_on_an_advantage_makes_the_answer_likelier(tokenizer, student):
    rows = _rows(tokenizer)
    student.zero_grad()
    loss = reward.update_loss(
        student, student, rows, "reverse_kl", Weights(0.0, 1.0), torch.tensor([1.0, 0.0, 0.0]), policy_loss(Policy())
    )
    loss.backward()

    def log_prob() -> float:
        logits = student(input_ids=rows.input_ids[: int(rows.lens[0])][None]).logits[0].log_softmax(-1)
        said = rows.input_ids[: int(rows.lens[0])][-4:]
        return logits[-5:-1].gather(1, said[:, None]).sum().item()

    with torch.no_grad():
        before = log_prob()
        for parameter in student.parameters():
            if parameter.grad is not None:
                parameter -= 1e-3 * parameter.grad
        assert log_prob() > before


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (3, 5, "better, by more than 2"),
        (1, 5, "better"),
        (-1, 5, "not worse by more than 2"),
        (-3, 5, "undecided"),
        (-3, -1, "worse"),
        (-5, -3, "worse, by more than 2"),
    ],
)
def test_a_verdict_goes_by_the_whole_interval(low, high, says):
    found = reward.Difference(5, (low + high) / 2, 1.0, low, high, 0.5)
    assert reward.verdict(found, 2) == says


def test_the_control_is_the_better_part_in_each_seed():
    after = {"kl": (0.5, 0.7), "reward": (0.6, 0.4), "kl_reward": (0.65, 0.75)}
    results = [
        reward.Result(cell=cell, seed=seed, before=0.3, after=after.get(cell, (0.1, 0.1))[seed], taught=1.0)
        for cell in reward.CELLS
        for seed in (0, 1)
    ]
    assert reward.differences(results)[0].mean == pytest.approx(5.0)
    assert "the better of `kl` or `reward` | 5.0 ± 0.0" in reward.table(results)


def test_a_run_moves_the_student_and_measures_it(student, monkeypatch):
    monkeypatch.setattr(reward, "NUM_UPDATES", 1)
    monkeypatch.setattr(reward, "NUM_PROBLEMS", 2)
    asked: list = []
    monkeypatch.setattr(reward, "share_right", lambda model, seed: float(len(asked.append(model) or asked)))
    found = reward.run("kl_reward", {"start": student, "good": student}, seed=1)
    assert (found.before, found.after, found.taught) == (1.0, 2.0, 3.0)
    start, trained, teacher = asked
    assert teacher is student
    assert any(not torch.equal(a, b) for a, b in zip(start.parameters(), trained.parameters(), strict=True))
