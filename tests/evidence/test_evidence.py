"""The studies' harness: the toy chains, the statistics against published numbers, and small whole runs of it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.evidence import chains, importance, models
from tests.evidence.generate import generate, texts_of
from tests.evidence.importance import ALL, CELLS, Cell, Result, Run, primary, problem_weights, table
from tests.evidence.inference import holm, paired, t_beyond
from tests.evidence.measure import Measured

from opd.losses import head_loss as _real


def test_a_chain_is_answered_step_by_step_and_wrongly_without_carries() -> None:
    chain = chains.Chain(48, (7, 5))
    right = chain.worked(random.Random(0), (1.0, 0.0, 0.0))
    wrong = chain.worked(random.Random(0), (1.0, 0.0, 0.0), drop_carries=True)
    assert right == "so 48+7=55\nso 55+5=60\n#60"
    assert wrong == "so 48+7=45\nso 45+5=40\n#40"
    assert chain.is_right(right)
    assert not chain.is_right(wrong)
    assert not chain.is_right("60")
    assert not chain.is_right("#60\nso")


def test_prompts_have_one_length_and_every_right_answer_fits() -> None:
    problems = chains.draw(100, heldout=False, seed=3)
    assert {problem.level for problem in problems} == set(chains.LEVELS)
    assert models.prompts(problems).shape[0] == 100
    lessons = models.lessons(problems, (0.0, 1.0, 0.0), seed=0, wrong_share=0.0)
    assert max(len(lesson.mask) for lesson in lessons) <= chains.MAX_RESPONSE_TOKENS


def test_no_problem_is_on_both_sides() -> None:
    train, heldout = (chains.draw(500, heldout=side, seed=1) for side in (False, True))
    assert not set(train) & set(heldout)


@pytest.mark.parametrize(("freedom", "published"), [(4, 2.776), (9, 2.262)])
def test_t_quantiles_are_the_published_ones(freedom: int, published: float) -> None:
    assert t_beyond(0.05, freedom) == pytest.approx(published, abs=5e-4)


def test_paired_differences_by_hand() -> None:
    found = paired([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.standard_error == pytest.approx(0.5**0.5)  # sd sqrt(2.5) over sqrt(5)
    assert (found.low, found.high) == pytest.approx((3 - 2.7764 * 0.5**0.5, 3 + 2.7764 * 0.5**0.5), abs=1e-4)
    assert found.p == pytest.approx(0.01324, abs=1e-5)  # t = 4.2426, 4 degrees of freedom


def test_holm_multiplies_by_what_is_left_and_never_falls() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_primary_comparisons_are_of_cells() -> None:
    assert len(primary()) == 11
    assert {name for one in primary() for name in (one.cell, one.control)} <= CELLS.keys()


def test_an_answer_depends_on_its_own_seed_alone(folder: Path) -> None:
    model = models.load(folder, "start-1", torch.device("cpu"))
    prompts = models.prompts(chains.draw(5, heldout=False, seed=1))
    seeds = np.arange(5, dtype=np.uint64)
    whole = texts_of(generate(model, prompts, seeds, max_tokens=6).rows)
    assert texts_of(generate(model, prompts[3:], seeds[3:], max_tokens=6).rows) == whole[3:]
    assert texts_of(generate(model, prompts[3:], seeds[:2], max_tokens=6).rows) != whole[3:]


def test_an_answer_ends_with_its_end_of_turn(folder: Path) -> None:
    model = models.load(folder, "start-1", torch.device("cpu"))
    with torch.no_grad():
        model.lm_head.weight[models.tokenizer().eos_token_id] *= 20.0  # now and then the next token
    rows = generate(
        model, models.prompts(chains.draw(20, heldout=False, seed=1)), np.arange(20, dtype=np.uint64), max_tokens=9
    ).rows
    answers = rows.input_ids.split(rows.lens.tolist())
    eos = models.tokenizer().eos_token_id
    assert {len(answer) - int(prompt) for answer, prompt in zip(answers, rows.prompt_lens, strict=True)} != {9}
    for answer, prompt in zip(answers, rows.prompt_lens.tolist(), strict=True):
        assert eos not in answer[prompt:-1]
        assert len(answer) - prompt == 9 or answer[-1] == eos


START = {"pass_rates": [0.0, 0.5, 1.0, 0.25] * 5, "response_length": 40.0, "score": 0.25}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "NUM_UPDATES": 2,
        "BATCH_SIZE": 6,
        "MEASURED": Measured(num_heldout=5, num_heldout_answers=2),
    }.items():
        monkeypatch.setattr(importance, name, value)


def make_run(name: str, folder: Path) -> Run:
    student, teacher = (models.load(folder, model, torch.device("cpu")) for model in ("start-1", "teacher"))
    return Run(CELLS[name], student, teacher, seed=1, start=START)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["soft_or_20", "entropy_20", "divergence_20", "random_20", "position_20", "bottom_20"])
def test_a_cell_trains_its_share_of_the_tokens(name: str, folder: Path, small: None) -> None:
    run = make_run(name, folder)
    run.loss_at(0)
    assert 0.15 * run.num_generated < run.num_trained <= 0.2 * run.num_generated


def test_a_short_horizon_generates_no_more_than_its_share(folder: Path, small: None) -> None:
    run = make_run("first_10", folder)
    run.loss_at(0)
    assert run.num_generated <= 6 * 4  # 10 % of 40 tokens
    assert run.num_trained == run.num_generated


def test_without_a_teacher_what_was_drawn_becomes_less_likely(folder: Path, small: None) -> None:
    run = make_run("no_teacher", folder)
    prompts = models.prompts([run.problems[index] for index in run.order[:6]])
    rows = generate(run.student, prompts, np.arange(6, dtype=np.uint64), max_tokens=5).rows

    def log_prob() -> torch.Tensor:
        loss, num = run.loss(rows, torch.ones(6), "reverse_kl", 0)
        return loss / num

    before = log_prob()
    before.backward()
    with torch.no_grad():
        for parameter in run.student.parameters():
            parameter -= 1e-2 * parameter.grad
    assert log_prob() < before


def test_problems_are_weighed_and_left_out_as_the_cell_says() -> None:
    rates = START["pass_rates"]
    assert isinstance(rates, list)
    uniform, hard, competence, drawn = (
        problem_weights(Cell(problems=problems), rates, seed=1)
        for problems in ("uniform", "hard_filter", "competence", "random")
    )
    assert uniform.tolist() == [1.0] * 20
    assert hard[:4].tolist() == [0.0, 2.0, 0.0, 2.0]
    assert competence[:4].tolist() == pytest.approx([0.0, 16 / 7, 0.0, 12 / 7])  # p (1 - p) over its mean, 7 / 64
    assert sorted(drawn.tolist()) == sorted(hard.tolist())
    assert drawn.tolist() != hard.tolist()


@pytest.mark.slow
def test_stages_change_kind_and_who_answers_at_half(folder: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run("forward_reverse", folder)
    seen: list[bool | str] = []
    monkeypatch.setattr(
        importance, "head_loss", lambda *args, **kwargs: seen.append(args[4].kind) or _real(*args, **kwargs)
    )
    monkeypatch.setattr(
        importance, "generate",
        lambda model, *args, **kwargs: seen.append(model is run.teacher) or generate(model, *args, **kwargs),
    )  # fmt: skip
    run.train()
    assert seen == [True, "forward_kl", False, "reverse_kl"]


@pytest.mark.slow
def test_what_ran_is_not_run_again(folder: Path, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance, "FOLDER", folder)
    monkeypatch.setattr(models, "make", lambda *args, **kwargs: None)
    monkeypatch.setattr(importance, "pass_rates", lambda *args, **kwargs: START["pass_rates"])
    trained = []
    real = importance.run
    monkeypatch.setattr(
        importance, "run", lambda cell, *args, **kwargs: trained.append(cell) or real(cell, *args, **kwargs)
    )
    words = ["--seeds", "1", "--cells", ALL, "random_20", "--out", str(tmp_path / "lines.jsonl")]
    for _ in range(2):
        assert importance.main(words) == 0
    assert trained == [ALL, "random_20"]
    page = (tmp_path / "IMPORTANCE.md").read_text()
    assert "| `random_20` | 1 |" in page
    assert "soft_or_50 - all | 0 |" in page


def test_the_table_says_what_contradicts_a_paper() -> None:
    def row(cell: str, seed: int, score: float) -> Result:
        return Result(
            cell=cell, seed=seed, before=0.25, after=score, pass_at_k=[score] * 8, response_length=40.0, entropy=0.2,
            trained_tokens=100, generated_tokens=200,
        )  # fmt: skip

    noise = [0.001 * (seed % 3) for seed in range(1, 11)]
    rows = [row(ALL, seed, 0.6) for seed in range(1, 11)]
    rows += [row("soft_or_20", seed, 0.5 + noise[seed - 1]) for seed in range(1, 11)]
    rows += [row("entropy_50", seed, 0.7 + noise[seed - 1]) for seed in range(1, 11)]
    page = table(rows).splitlines()
    found = {line.split(" | ")[0].removeprefix("| "): line for line in page}
    assert found["soft_or_20 - all"].startswith("| soft_or_20 - all | 10 | -9.9 ± 0.0 |")
    assert found["soft_or_20 - all"].endswith("| CONTRADICTED: lower |")
    assert found["entropy_50 - all"].endswith("| agrees |")
    assert found["competence - all"].endswith("| not run |")
    for part in (page[: page.index("")], page[page.index("") + 1 :]):
        assert len({line.count("|") for line in part}) == 1
