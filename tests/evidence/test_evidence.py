"""The studies' harness: the toy chains, the statistics against published numbers, and small whole runs of it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.evidence import chains, models
from tests.evidence.cells import (
    ALL,
    FAMILIES,
    NUM_PRIMARY_SEEDS,
    NUM_SEEDS,
    STUDIES,
    Cell,
    primary,
    seeds_of,
    study_cells,
)
from tests.evidence.generate import generate, texts_of
from tests.evidence.harness import LOG_FILE
from tests.evidence.inference import holm, paired, t_beyond
from tests.evidence.problems import problem_weights
from tests.evidence.small import CPU, SMALL, START, make_run, named, run_small
from tests.evidence.table import table

from opd.losses import chunked_divergence as _real


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


def test_primary_comparisons_are_of_cells_that_get_ten_seeds() -> None:
    for studies, one in [(studies, one) for family, studies in FAMILIES.items() for one in primary(family)]:
        assert one.study in studies
        names = {cell.name for cell in study_cells(one.study)}
        assert {one.cell, one.control} <= names
        assert len(seeds_of(one.cell)) == len(seeds_of(one.control)) == NUM_PRIMARY_SEEDS


def test_the_studies_have_the_cells_that_were_asked_for() -> None:
    cells = {study: {cell.name for cell in study_cells(study)} for study in STUDIES}
    scores = ("soft_or", "entropy", "divergence", "random", "position", "bottom")
    assert cells["tip"] == {ALL, "no_teacher", *(f"{score}_{ratio}" for score in scores for ratio in (50, 20, 10))}
    orders = {"forward_reverse", "forward_forward", "reverse_forward"}
    assert cells["paced"] == {ALL, "no_teacher", "hard_filter", "competence", "random_problems", *orders}
    ends = {f"{end}_{share}" for end in ("first", "last", "random") for share in (30, 10)}
    assert cells["horizon"] == {ALL, "no_teacher", *ends}
    assert all(len(seeds_of(cell)) >= NUM_SEEDS for its in cells.values() for cell in its)


def test_an_answer_depends_on_its_own_seed_alone(folder: Path) -> None:
    model = models.load(folder, "start-1", CPU)
    prompts = models.prompts(chains.draw(5, heldout=False, seed=1))
    seeds = np.arange(5, dtype=np.uint64)
    whole = texts_of(generate(model, prompts, seeds, max_tokens=6).rows)
    assert texts_of(generate(model, prompts[3:], seeds[3:], max_tokens=6).rows) == whole[3:]
    assert texts_of(generate(model, prompts[3:], seeds[:2], max_tokens=6).rows) != whole[3:]


def test_an_answer_ends_with_its_end_of_turn(folder: Path) -> None:
    model = models.load(folder, "start-1", CPU)
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


@pytest.mark.parametrize("name", ["soft_or_20", "entropy_20", "divergence_20", "random_20", "position_20", "bottom_20"])
def test_a_cell_trains_its_share_of_the_tokens(name: str, folder: Path) -> None:
    run = make_run(named("tip", name), folder)
    run.update(0)
    assert 0.15 * run.num_generated < run.num_trained <= 0.2 * run.num_generated


def test_a_short_horizon_generates_no_more_than_its_share(folder: Path) -> None:
    run = make_run(named("horizon", "first_10"), folder)
    run.update(0)
    assert run.num_generated <= SMALL.batch_size * 4  # 10 % of 40 tokens
    assert run.num_trained == run.num_generated


def test_without_a_teacher_what_was_drawn_becomes_less_likely(folder: Path) -> None:
    run = make_run(named("tip", "no_teacher"), folder)
    prompts = models.prompts([run.problems[index] for index in run.order[: SMALL.batch_size]])
    rows = generate(run.student, prompts, np.arange(SMALL.batch_size, dtype=np.uint64), max_tokens=5).rows

    def log_prob() -> float:
        loss, num = run._loss(rows, torch.ones(SMALL.batch_size), "reverse_kl", 0)
        return loss.item() / num

    before = log_prob()
    loss, num = run._loss(rows, torch.ones(SMALL.batch_size), "reverse_kl", 0)
    (loss / num).backward()
    run.optimizer.step()
    assert log_prob() < before


def test_problems_are_weighed_and_left_out_as_the_cell_says() -> None:
    rates = START["pass_rates"]
    assert isinstance(rates, list)
    uniform, hard, competence, drawn = (
        problem_weights(Cell(name="", problems=problems), rates, seed=1)
        for problems in ("uniform", "hard_filter", "competence", "random")
    )
    assert uniform.tolist() == [1.0] * 20
    assert hard[:4].tolist() == [0.0, 2.0, 0.0, 2.0]
    assert competence[:4].tolist() == pytest.approx([0.0, 16 / 7, 0.0, 12 / 7])  # p (1 - p) over its mean, 7 / 64
    assert sorted(drawn.tolist()) == sorted(hard.tolist())
    assert drawn.tolist() != hard.tolist()


def test_stages_change_kind_and_who_answers_at_half(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(named("paced", "forward_reverse"), folder)
    seen = []
    monkeypatch.setattr(
        "tests.evidence.train.chunked_divergence",
        lambda *args, **kwargs: seen.append(args[4]) or _real(*args, **kwargs),
    )
    monkeypatch.setattr(
        "tests.evidence.train.generate",
        lambda model, *args, **kwargs: seen.append(model is run.teacher) or generate(model, *args, **kwargs),
    )
    run.update(0)
    run.update(1)
    assert seen == [True, "forward_kl", False, "reverse_kl"]


@pytest.mark.slow
def test_what_ran_is_not_run_again_and_a_torn_line_is(folder: Path, tmp_path: Path) -> None:
    cells = [(study, Cell(name=ALL), 1) for study in ("tip", "paced")]
    first = run_small(tmp_path, folder, cells)
    log = (tmp_path / LOG_FILE).read_text()
    assert len(log.splitlines()) == 3  # start and teacher measured, and the one run that both studies have
    assert run_small(tmp_path, folder, cells) == first
    assert (tmp_path / LOG_FILE).read_text() == log
    (tmp_path / LOG_FILE).write_text(log[:-20])
    again = run_small(tmp_path, folder, cells)
    timeless = [{key: value for key, value in one.items() if key != "seconds"} for one in (*first, *again)]
    assert timeless[:2] == timeless[2:]
    assert [one["study"] for one in first] == ["tip", "paced"]
    asked = "study cell seed score_before score_after score_teacher updates trained_tokens generated_tokens seconds"
    assert set(asked.split()) <= first[0].keys()
    assert len(first[0]["after"]["pass_at_k"]) == SMALL.num_heldout_answers
    assert json.loads(json.dumps(first)) == first


@pytest.mark.slow
def test_the_command_runs_its_cells_in_processes_of_its_own(folder: Path, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "tests.evidence",
        "--study",
        "paced",
        "--cells",
        ALL,
        "--seeds",
        "1",
        "--device",
        "cpu",
    ]
    words += ["--workers", "1", "--out", str(tmp_path), "--models", str(folder)]
    small = {
        "num_updates": 1, "batch_size": 2, "num_problems": 5, "num_rate_answers": 1, "num_heldout": 5,
        "num_heldout_answers": 2,
    }  # fmt: skip
    for key, value in small.items():
        words += ["--set", f"{key}={value}"]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": "src:tools:."}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "results.json").read_text())
    assert (found["study"], found["cell"], found["seed"], found["updates"]) == ("paced", ALL, 1, 1)
    page = (tmp_path / "RESULTS.md").read_text()
    assert f"| {ALL} | 1 |" in page
    assert "| pass@1 | pass@2 | tokens an answer |" in page, "as far as two answers a problem go"


def test_the_table_says_what_contradicts_a_paper() -> None:
    def row(cell: str, seed: int, score: float) -> dict[str, object]:
        measured = {"score": score, "pass_at_k": [score] * 8, "response_length": 40.0, "entropy": 0.2}
        counted = {"trained_tokens": 100, "generated_tokens": 200, "seconds": 1.0, "device": "cpu"}
        return {
            "study": "tip",
            "cell": cell,
            "seed": seed,
            "score_after": score,
            "before": measured,
            "after": measured,
            "teacher": measured,
        } | counted

    noise = [0.001 * (seed % 3) for seed in range(1, 11)]
    rows = [row(ALL, seed, 0.6) for seed in range(1, 11)]
    rows += [row("soft_or_50", seed, 0.5 + noise[seed - 1]) for seed in range(1, 11)]
    rows += [row("entropy_50", seed, 0.7 + noise[seed - 1]) for seed in range(1, 11)]
    page = table(rows)
    assert (
        "**Contradicts a paper:** TIP: Soft-OR at 50 % beats all tokens; here soft_or_50 - all is -9.9 ± 0.0 points."
        in page
    )
    assert "9 of them have not run yet." in page
    entropy = next(line for line in page.splitlines() if line.startswith("| tip: entropy_50 - all"))
    assert entropy.endswith("| agrees |")
    widths = {line.count("|") for line in page.partition("## tip")[2].splitlines() if line.startswith("|")}
    assert len(widths) == 1
