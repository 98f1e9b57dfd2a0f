"""The study of self-distillation: what its teachers read, and that a teacher that reads the student's prompt teaches nothing."""

from __future__ import annotations

import random

import pytest
import torch
from tests.evidence import additions, opsd

from opd.batch import RolloutRows
from opd.data.toy.task import Problem, split_problems

PROBLEMS = [Problem(48, 75), Problem(7, 34), Problem(99, 1)]


def _rows(tokenizer) -> RolloutRows:
    prompts = additions.prompt_ids(tokenizer, PROBLEMS)
    said = tokenizer(["113" + tokenizer.eos_token] * 3, return_tensors="pt")["input_ids"]
    return RolloutRows(
        input_ids=torch.cat([prompts, said], dim=1).flatten(),
        prompt_lens=torch.full((3,), prompts.shape[1]),
        response_lens=torch.full((3,), 4),
        response_mask=torch.ones(12, dtype=torch.bool),
    )


def test_the_teacher_reads_the_hint_behind_the_question(tokenizer):
    hinted = additions.prompt_ids(tokenizer, PROBLEMS, ["123", "041", "100"])
    assert "48+75=(123)" in tokenizer.decode(hinted[0])
    assert "48+75=" in tokenizer.decode(additions.prompt_ids(tokenizer, PROBLEMS)[0])
    assert "(" not in tokenizer.decode(additions.prompt_ids(tokenizer, PROBLEMS)[0])


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("hint", ["123", "041"]),
        ("refreshed", ["123", "041"]),
        ("shuffled", ["041", "100"]),
        ("no_hint", None),
        ("teacher", None),
    ],
)
def test_each_cells_teacher_reads_what_its_name_says(cell, expected):
    assert opsd.hints_of(cell, PROBLEMS[:2], PROBLEMS[1:]) == expected


def test_a_start_that_reads_the_students_prompt_is_no_other_and_one_with_the_answer_is(tokenizer, student):
    rows, prompts = _rows(tokenizer), additions.prompt_ids(tokenizer, PROBLEMS)
    alike = additions.update_loss(student, student, tokenizer, rows, prompts)
    assert abs(alike.item()) < 1e-6
    alike.backward()
    assert all(parameter.grad.abs().max() < 1e-5 for parameter in student.parameters())
    student.zero_grad()
    hinted = additions.prompt_ids(tokenizer, PROBLEMS, [problem.answer for problem in PROBLEMS])
    assert additions.update_loss(student, student, tokenizer, rows, hinted).item() > 1e-3


@pytest.mark.slow
def test_lessons_and_updates_never_see_a_held_out_problem(tokenizer, monkeypatch):
    seen: list[Problem] = []
    write = additions.prompt_ids

    def noting(tokenizer, problems, hints=None):
        seen.extend(problems)
        return write(tokenizer, problems, hints)

    for module in (additions, opsd):
        monkeypatch.setattr(module, "prompt_ids", noting)
    monkeypatch.setattr(opsd, "NUM_LESSON_STEPS", 2)
    monkeypatch.setattr(additions, "NUM_UPDATES", 2)
    start = opsd.make_start(tokenizer, seed=1)
    taught = {tuple(sorted(problem)) for problem in seen}
    monkeypatch.setattr(opsd, "share_right", lambda *args, **how: 0.0)
    found = opsd.run("hint", start, tokenizer, seed=1)
    taught |= {tuple(sorted(problem)) for problem in seen}
    assert found.seed == 1
    assert not taught & {tuple(sorted(problem)) for problem in split_problems().heldout}


def test_differences_are_paired_by_seed():
    draw = random.Random(0)
    results = [
        opsd.Result(cell=cell, seed=seed, before=0.3, after=0.3 + gain + seed / 100, taught=1.0)
        for cell, gain in (("hint", 0.5), ("no_hint", 0.0), ("shuffled", -0.2))
        for seed in draw.sample(range(5), 5)
    ]
    found = opsd.differences(results)
    assert found["hint", "no_hint"].mean == pytest.approx(50)
    assert found["hint", "shuffled"].mean == pytest.approx(70)
    assert "| `hint` - `no_hint` | 50.0 ± 0.0 |" in opsd.table(results)
