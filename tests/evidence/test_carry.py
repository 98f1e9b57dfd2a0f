"""The study of the schedule carry: whose tokens an update has under each schedule, and that the verdict goes by the whole interval."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from tests.evidence import carry, models
from tests.evidence.settings import Settings

from opd.batch import RolloutRows

NUM_ROWS = 4


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "BATCH_SIZE", NUM_ROWS)
    monkeypatch.setattr(carry, "NUM_OF_LONGEST", 1)
    monkeypatch.setattr(carry, "BUDGET_TOKENS", 900)
    monkeypatch.setattr(carry, "MEASURED", Settings(num_heldout=5, num_heldout_answers=1))


def _run(cell: str, folder: Path) -> carry.Result:
    start, teacher = (models.load(folder, name, torch.device("cpu")) for name in ("start-1", "teacher"))
    return carry.run(cell, start, teacher, seed=1, before=0.25)


def test_long_answers_are_few_and_no_problem_is_held_out():
    problems = carry.problems(3)
    counts = Counter(problem.level for problem in problems)
    assert [counts[level] for level in (5, 4, 3, 2, 1)] == [carry.NUM_OF_LONGEST * 2**more for more in range(5)]
    assert not any(problem.is_heldout for problem in problems)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["strict", "carry", "by_start"])
def test_how_old_the_trained_tokens_are_follows_from_the_schedule(small, folder, cell):
    found = _run(cell, folder)
    assert found.trained_tokens >= 900
    if cell == "strict":
        assert (found.age_mean, found.age_max, found.carried_share) == (0, 0, 0)
        assert (found.thrown_away, found.left) == (0, 0)
    elif cell == "carry":
        assert 0 < found.age_mean < found.age_max < found.num_updates
        assert found.thrown_away > 0
        assert found.left > 0
    else:
        assert found.age_mean == (found.num_updates - 1) / 2, "all of the start's: 0, 1, 2, ..."


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["strict", "carry"])
def test_an_update_reads_whole_answers_behind_the_prompts_of_their_problems(small, folder, monkeypatch, cell):
    seen: list[tuple[RolloutRows, torch.Tensor]] = []
    update_loss = carry.update_loss

    def noting(student, teacher, tokenizer, rows, prompts):
        seen.append((rows, prompts))
        return update_loss(student, teacher, tokenizer, rows, prompts)

    monkeypatch.setattr(carry, "update_loss", noting)
    found = _run(cell, folder)
    assert len(seen) == found.num_updates
    eos, asked = models.tokenizer().eos_token_id, set(map(tuple, models.prompts(carry.problems(1)).tolist()))
    for rows, prompts in seen:
        assert rows.num_rows == NUM_ROWS
        for row, num, prompt in zip(rows.input_ids.split(rows.lens.tolist()), rows.response_lens, prompts, strict=True):
            answer = row[-int(num) :].tolist()
            assert row[: -int(num)].tolist() == prompt.tolist()
            assert tuple(prompt.tolist()) in asked
            assert [*answer, eos].index(eos) >= len(answer) - 1, "nothing follows the end of turn"
            assert answer[-1] == eos or len(answer) == carry.MAX_RESPONSE_TOKENS


@pytest.mark.parametrize(("off", "holds"), [(0.0, True), (0.012, False), (-0.012, False), (0.03, False)])
def test_the_claim_holds_only_where_the_whole_interval_is_within_the_margin(off, holds):
    results = [
        carry.Result(
            cell=cell, seed=seed, before=0.2, after=score, after_longest=score, trained_tokens=9, num_updates=3,
            age_mean=1.0, age_max=2.0, carried_share=0.5, thrown_away=0, left=0, first_steps=1, later_steps=1.0,
        )
        for seed, by in enumerate((-0.005, 0.0, 0.005))
        for cell, score in (dict.fromkeys(carry.CELLS, 0.8 + off + by) | {"strict": 0.8}).items()
    ]  # fmt: skip
    assert carry.holds(results) == holds
    assert f"lies within ±2 points: {'yes' if holds else 'no'}." in carry.table(results)
