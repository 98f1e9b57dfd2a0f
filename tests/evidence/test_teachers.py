"""The study of two teachers of half the task each: its problems and lessons, whose answers reach which row, and what is judged."""

from __future__ import annotations

import pytest
import torch
from tests.evidence import additions, teachers

from opd.batch import RolloutRows
from opd.data.toy.task import Problem, split_problems

PROBLEMS = [Problem(48, 75), Problem(47, 34), Problem(99, 11)]


def _rows(tokenizer) -> RolloutRows:
    prompts = additions.prompt_ids(tokenizer, PROBLEMS)
    said = tokenizer(["113" + tokenizer.eos_token] * 3, return_tensors="pt")["input_ids"]
    return RolloutRows(
        input_ids=torch.cat([prompts, said], dim=1).flatten(),
        prompt_lens=torch.full((3,), prompts.shape[1]),
        response_lens=torch.full((3,), 4),
        response_mask=torch.ones(12, dtype=torch.bool),
    )


def test_every_problem_carries_and_a_kind_is_about_half():
    asked = teachers.problems("heldout")
    assert all(problem.answer != problem.answer_without_carries for problem in asked)
    even = sum(teachers.kind_of(problem) == "even" for problem in asked)
    assert 0.45 < even / len(asked) < 0.55
    assert [teachers.kind_of(problem) for problem in PROBLEMS] == ["even", "odd", "odd"]


@pytest.mark.parametrize(("knows", "said"), [("even", ["123", "071", "000"]), ("odd", ["013", "081", "110"])])
def test_a_teacher_is_taught_one_kind_and_to_drop_the_carries_of_the_other(tokenizer, monkeypatch, knows, said):
    taught: dict[Problem, str] = {}

    def lesson(model, tokenizer, prompts, answers):
        taught.update(zip(asked, answers, strict=True))
        return model.lm_head.weight.sum()

    asked: list[Problem] = []
    monkeypatch.setattr(teachers, "problems", lambda split: PROBLEMS)
    monkeypatch.setattr(teachers, "LESSON_BATCH", 3)
    monkeypatch.setattr(teachers, "NUM_LESSON_STEPS", 1)
    monkeypatch.setattr(additions, "prompt_ids", lambda tokenizer, problems: asked.extend(problems))
    monkeypatch.setattr(additions, "lesson", lesson)
    teachers.make_teacher(tokenizer, knows)
    assert [taught[problem] for problem in PROBLEMS] == said


@pytest.mark.parametrize(("cell", "own"), [("routed", [1, 0, 0]), ("even_alone", [1] * 3), ("odd_alone", [0] * 3)])
def test_a_rows_loss_is_that_of_its_own_teacher(tokenizer, student, cell, own):
    """`even` is another model; `odd` is the student, from which it does not diverge."""
    from copy import deepcopy

    other = deepcopy(student)
    with torch.no_grad():
        other.lm_head.weight.mul_(0.5)
    rows, models = _rows(tokenizer), {"even": other, "odd": student}
    kinds = [teachers.kind_of(problem) for problem in PROBLEMS]
    found = teachers.update_loss(student, models, rows, kinds, teachers.CELLS[cell])
    everything = teachers.update_loss(student, {"even": other, "odd": other}, rows, kinds, teachers.CELLS["even_alone"])
    if all(own):
        assert found.item() == everything.item()
    elif not any(own):
        assert abs(found.item()) < 1e-6
    else:
        assert 1e-4 < found.item() < everything.item()


def test_updates_never_see_a_held_out_problem(tokenizer, student, monkeypatch):
    seen: list[Problem] = []
    write = additions.prompt_ids

    def noting(tokenizer, problems):
        seen.extend(problems)
        return write(tokenizer, problems)

    monkeypatch.setattr(additions, "prompt_ids", noting)
    monkeypatch.setattr(teachers, "NUM_UPDATES", 2)
    monkeypatch.setattr(teachers, "shares_right", lambda *args, **how: {"even": 0.25, "odd": 0.5})
    found = teachers.run("routed", dict.fromkeys(("start", "even", "odd"), student), seed=1)
    assert (found.before, found.after) == (0.375, 0.375)
    assert len(seen) == 2 * teachers.BATCH_SIZE
    assert not {tuple(sorted(problem)) for problem in seen} & {tuple(sorted(p)) for p in split_problems().heldout}


@pytest.mark.parametrize(
    ("routed", "alone", "borne_out"),
    [(0.97, 0.45, (True, True)), (0.91, 0.45, (False, True)), (0.97, 0.6, (True, False))],
)
def test_the_claims_go_by_the_whole_interval(routed, alone, borne_out):
    spread = (-0.02, 0.0, 0.02)
    results = [
        teachers.Result(cell=cell, seed=seed, before=0.2, even=share + off, odd=share + off)
        for cell, share in (("routed", routed), *((cell, alone) for cell in list(teachers.CELLS)[1:]))
        for seed, off in enumerate(spread)
    ]
    assert tuple(teachers.verdict(results).values()) == (borne_out[0], borne_out[1], borne_out[1])
    assert f"| `routed` above 90 | {'yes' if borne_out[0] else 'no'} |" in teachers.table(results)
