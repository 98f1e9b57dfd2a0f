"""Sparse-to-dense on the toy chains: what its cells are, GRPO's gradient by hand, and a small whole run of it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.evidence import chains, models
from tests.evidence.cells import BRIDGE, RAW, START, TEACHER_GRPO, TEACHER_SFT, study_cells
from tests.evidence.generate import generate, right_answers
from tests.evidence.grpo import policy_loss_sum
from tests.evidence.harness import LOG_FILE
from tests.evidence.settings import settings_of
from tests.evidence.small import SMALL_BRIDGE, make_run, named, run_small
from tests.evidence.table import table

CELLS = {cell.name: cell for cell in study_cells(BRIDGE)}


def test_the_cells_that_were_asked_for_are_there() -> None:
    assert {
        name: (cell.learner, cell.teacher, cell.stages, cell.then, cell.then_on) for name, cell in CELLS.items()
    } == {
        "teacher_grpo": (RAW, None, ("grpo",) * 4, (), "replay"),
        "teacher_sft": (RAW, None, ("sft",) * 4, (), "replay"),
        "bridge": (START, TEACHER_GRPO, ("forward_kl", "reverse_kl"), (), "replay"),
        "direct_grpo": (START, None, ("grpo", "grpo"), (), "replay"),
        "direct_grpo_same_tokens": (START, None, ("grpo",) * 6, (), "replay"),
        "no_warmup": (START, TEACHER_GRPO, ("reverse_kl", "reverse_kl"), (), "replay"),
        "forward_kl_only": (START, TEACHER_GRPO, ("forward_kl", "forward_kl"), (), "replay"),
        "hard_sft_only": (START, TEACHER_GRPO, ("sft", "sft"), (), "replay"),
        "raw_teacher": (START, RAW, ("forward_kl", "reverse_kl"), (), "replay"),
        "sft_teacher": (START, TEACHER_SFT, ("forward_kl", "reverse_kl"), (), "replay"),
        "stage3_new": (START, TEACHER_GRPO, ("forward_kl", "reverse_kl"), ("grpo", "grpo"), "new"),
        "stage3_replay": (START, TEACHER_GRPO, ("forward_kl", "reverse_kl"), ("grpo", "grpo"), "replay"),
        "opd_goes_on": (START, TEACHER_GRPO, ("forward_kl", "reverse_kl"), ("reverse_kl", "reverse_kl"), "new"),
        "direct_grpo_goes_on": (START, None, ("grpo", "grpo"), ("grpo", "grpo"), "new"),
    }


def test_the_gradient_of_grpo_by_hand() -> None:
    """Two problems with two answers each, of 2, 1, 1 and 1 tokens: one right of the first, both of the second."""
    reference = torch.tensor([-1.0, -2.0, -0.5, -0.7, -0.3])
    log_probs = reference.clone()
    log_probs[4] -= np.log(2.0)  # the learner has moved away from this token
    log_probs.requires_grad_()
    settings = replace(SMALL_BRIDGE, grpo_kl_coef=0.25)
    loss = policy_loss_sum(
        log_probs, reference, torch.tensor([2, 1, 1, 1]), np.array([True, False, True, True]), [7, 7, 3, 3], settings
    )
    loss.backward()
    # The advantage is (reward - mean) / sd: of (1, 0) it is +-0.5 / sqrt(0.5), of (1, 1) none. The ratio of new to old is 1.
    # Of the estimator exp(r - l) - (r - l) - 1 with r - l = log 2, the derivative by l is 1 - 2.
    advantage = 0.5**0.5
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-advantage, -advantage, advantage, 0.0, -0.25], abs=1e-5)


def test_an_update_of_grpo_makes_right_answers_likelier_than_wrong_ones(folder: Path) -> None:
    settings = replace(SMALL_BRIDGE, batch_size=64, num_answers=32, num_warmup_steps=1)
    run = make_run(named(BRIDGE, "direct_grpo"), folder, settings)
    asked = [index for index in run.order[:2] for _ in range(32)]
    rows = generate(
        run.student,
        models.prompts([run.problems[index] for index in asked]),
        np.arange(64, dtype=np.uint64),
        max_tokens=2,
    ).rows
    right = np.arange(64) % 4 == 0

    def gap() -> float:
        with torch.no_grad():
            log_probs = run.log_probs(rows).split(rows.response_lens.tolist())
        means = [
            float(torch.stack([log_probs[row].mean() for row in np.flatnonzero(side)]).mean())
            for side in (right, ~right)
        ]
        return means[0] - means[1]

    before = gap()
    loss, num = run._policy_loss(rows, right, asked)
    (loss / num).backward()
    run.optimizer.step()
    assert gap() > before


@pytest.mark.slow
def test_who_answers_and_on_what_in_each_stage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(model, prompts, *args, **kwargs):
        seen.append((model is run.teacher, {tuple(prompt) for prompt in prompts.tolist()}))
        return generate(model, prompts, *args, **kwargs)

    monkeypatch.setattr("tests.evidence.train.generate", watched)
    asked = {}
    for name in ("stage3_new", "stage3_replay"):
        run = make_run(named(BRIDGE, name), folder, SMALL_BRIDGE)
        optimizer = run.optimizer
        for step in range(run.num_updates):
            run.update(step)
            assert (run.optimizer is optimizer) == (step < 2), "the stages of one run have one optimizer"
        assert [by_teacher for by_teacher, _ in seen] == [True, False, False, False]
        assert run.num_by_teacher < run.num_generated
        asked[name] = [problems for _, problems in seen]
        seen.clear()
    assert all(len(problems) == 2 for problems in asked["stage3_new"]), "three answers to each of two problems"
    assert asked["stage3_replay"][2:] == asked["stage3_replay"][:2] == asked["stage3_new"][:2]
    assert not set.union(*asked["stage3_new"][2:]) & set.union(*asked["stage3_new"][:2])


def test_new_labels_are_the_other_half(folder: Path) -> None:
    settings = replace(SMALL_BRIDGE, num_updates=10)
    first, second = (
        set(run.order[: run.num_first * 2]) if name == "bridge" else set(run.order[run.num_first * 2 :])
        for name in ("bridge", "stage3_new")
        for run in (make_run(named(BRIDGE, name), folder, settings),)
    )
    assert first | second == set(range(20))
    assert not first & second


def test_sft_without_a_teacher_learns_right_answers(folder: Path) -> None:
    run = make_run(named(BRIDGE, "teacher_sft"), folder, SMALL_BRIDGE)
    problems = [run.problems[index] for index in run.order[:2]]
    rows = models.worked_rows(problems, seed=1)
    assert right_answers(rows, problems).all()
    before = run._loss(rows, torch.ones(2), "sft", 0)[0].item()
    run.update(0)
    assert run._loss(rows, torch.ones(2), "sft", 0)[0].item() < before
    assert run.num_generated == 0


@pytest.mark.slow
def test_a_teacher_is_trained_once_and_again_only_where_it_is_gone(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "models"
    shutil.copytree(folder, own)
    cells = [(BRIDGE, CELLS[name], 1) for name in ("bridge", "raw_teacher", "direct_grpo")]
    first = run_small(tmp_path, own, cells)
    log = (tmp_path / LOG_FILE).read_text()
    (trained,) = own.glob("teacher_grpo-*")
    bits = trained.read_bytes()
    assert run_small(tmp_path, own, cells) == first
    assert (tmp_path / LOG_FILE).read_text() == log
    trained.unlink()
    again = run_small(tmp_path, own, cells)
    assert trained.read_bytes() == bits
    found = {one["cell"]: one for one in again}
    assert list(found) == [TEACHER_GRPO, "bridge", "raw_teacher", "direct_grpo"]
    assert found["bridge"]["teacher"] == found[TEACHER_GRPO]["after"] == found["direct_grpo"]["teacher"]
    assert found["raw_teacher"]["teacher"] == found[TEACHER_GRPO]["before"]
    assert found["bridge"]["teacher_training_tokens"] == found[TEACHER_GRPO]["generated_tokens"] > 0
    assert found["raw_teacher"]["teacher_training_tokens"] == found["direct_grpo"]["teacher_training_tokens"] == 0
    assert found["bridge"]["updates"] == found["direct_grpo"]["updates"] == 2
    page = table(again)
    assert "## Primary comparisons of the bridge" in page
    assert "all 5." in page
    assert "tip" not in page
    widths = {line.count("|") for line in page.partition("## bridge")[2].splitlines() if line.startswith("|")}
    assert len(widths) == 1
    assert "| raw teacher | 1 |" in page


def test_the_bridge_has_groups_and_an_epoch_in_ten_updates() -> None:
    settings = settings_of(BRIDGE, {"num_heldout": 5})
    assert settings.num_updates * settings.batch_size == settings.num_problems // 2 * settings.num_answers
    assert settings.num_heldout == 5
    assert settings_of("tip", {}).num_answers == 1
    assert chains.draw(settings.num_problems, heldout=False, seed=1)
