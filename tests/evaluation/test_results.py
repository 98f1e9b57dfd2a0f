"""From samples to numbers, metrics, a table and a file."""

import dataclasses
import io
import math

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from opd.evaluation.estimators import clustered
from opd.evaluation.results import MAJORITY, OF_ALL, REWARD, STD, as_metrics, evaluate, result_table
from opd.evaluation.samples import Sample, read_generations, write_generations


def sample(problem: int, number: int, *, pred: str = "7", right: bool = True, source: str = "aime24", **changes):
    return Sample(
        **{
            "run_id": "opd-run", "step": 20, "data_source": source, "problem_index": problem, "sample_index": number,
            "prompt": "<user>3+4?", "response": f"it is {pred}", "pred": pred, "ground_truth": "7", "score": float(right),
            "acc": float(right), "failed": False, "num_tokens": 10, "truncated": False,
            **changes,
        }
    )  # fmt: skip


# Problem 0: right, wrong, wrong; problem 1: right, right, no answer. Numbers: all have `plan`, two of problem 0 `hard_x`.
PLANS = ({"plan": 1.0, "hard_x": 0.5}, {"plan": 0.0}, {"plan": 0.0, "hard_x": 1.0}, *({"plan": 1.0},) * 3)
SIX = [
    sample(0, 0),
    sample(0, 1, pred="8", right=False),
    sample(0, 2, pred="8", right=False),
    sample(1, 0),
    sample(1, 1),
    sample(1, 2, pred="", right=False, num_tokens=40, truncated=True),
]
NUMBERED = [dataclasses.replace(one, numbers=numbers) for one, numbers in zip(SIX, PLANS, strict=True)]


def rows_of(results) -> dict[str, list[str]]:
    """Return the cells of the table by the row's label."""
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(result_table(results))
    lines = (line.split("│")[1:-1] for line in console.export_text().splitlines() if line.startswith("│"))
    return {label.strip(): [cell.strip() for cell in cells] for label, *cells in lines}


def test_a_problem_that_several_rows_ask_has_all_their_answers_as_samples():
    (once,), (repeated,) = (
        evaluate(SIX, num_samples=3, problems={"aime24": [0, 1]}),
        evaluate(SIX, num_samples=1, problems={"aime24": [0, 1, 0, 1, 1, 0]}),
    )
    assert repeated == once
    (uneven,) = evaluate(SIX[:5], num_samples=1, problems={"aime24": [0, 1, 0, 1, 0]})
    assert (uneven.num_samples, "acc/pass@3" in uneven.estimates, uneven.counts["num_missing"]) == (2, False, 0)
    assert uneven.mean.value == pytest.approx((1 / 3 + 1) / 2)


def test_an_accuracy_of_answers_that_could_not_be_read_is_said():
    (result,) = evaluate([sample(0, 0, pred="", right=False, truncated=True)], num_samples=1)
    said = result.unread_note("math_dapo")
    assert said.startswith("reward.function=math_dapo found no answer in any of 1 responses (1 were cut at the limit)")


# By hand. pass@k: problem 0 (n=3, c=1): 1/3, 2/3, 1; problem 1 (n=3, c=2): 2/3, 1, 1.
# maj@3: problem 0: two of three say 8, which is wrong; problem 1: the two that answer are right.
def test_two_problems_by_hand():
    (result,) = evaluate(SIX, num_samples=3)
    assert (result.data_source, result.num_problems, result.num_samples) == ("aime24", 2, 3)
    assert result.mean == pytest.approx((1 / 2, 1 / 6))  # means 1/3 and 2/3: sd sqrt(1/18), error sqrt(1/36)
    found = result.estimates
    assert [found[f"acc/pass@{k}"].value for k in (1, 2, 3)] == pytest.approx([1 / 2, 5 / 6, 1.0])
    assert found[STD] == pytest.approx((math.sqrt(2) / 3, 0.0))  # two of one and one of the other: sqrt(2/9)
    assert found[MAJORITY].value == pytest.approx(1 / 2)
    assert list(result.counts.values()) == [0, 6, 0, 0, 1, 1]
    assert found["num_tokens/mean"].value == pytest.approx((10 + 60 / 3) / 2)
    assert result.accuracy_by_problem == pytest.approx({0: 1 / 3, 1: 2 / 3})
    assert evaluate(SIX[::-1], num_samples=3) == [result]


def test_an_answer_that_never_came_is_wrong_and_has_the_worst_reward():
    plus_or_minus = [dataclasses.replace(one, score=2 * one.acc - 1) for one in SIX[1:]]  # as math_dapo scores
    (result,) = evaluate(plus_or_minus, num_samples=3, problems={"aime24": [0, 1, 2]}, worst_reward=-1.0)
    assert (result.num_problems, result.counts["num_missing"]) == (3, 4)
    assert result.accuracy_by_problem == pytest.approx({0: 0.0, 1: 2 / 3, 2: 0.0})
    assert result.estimates[REWARD].value == pytest.approx((-1 + 1 / 3 - 1) / 3)


def test_a_data_set_none_of_whose_answers_came_still_has_a_column():
    results = evaluate([], num_samples=2, problems={"aime25": [4]})
    assert "num_tokens/mean" not in rows_of(results)


def test_problems_that_were_not_asked_are_counted_and_wrong_in_the_mean_of_all():
    results = evaluate(SIX, num_samples=3, num_dropped={"aime24": 2, "math": 7})
    assert results[0].estimates[OF_ALL] == pytest.approx(clustered([1 / 3, 2 / 3, 0.0, 0.0]))
    metrics = as_metrics(results)
    assert metrics["val-aux/aime24/acc_of_all/mean@3"] == pytest.approx(1 / 4)
    assert metrics["val-aux/aime24/num_dropped"] == 2.0


def test_data_sets_are_evaluated_apart():
    first, second = evaluate([*SIX, *(sample(0, i, source="math") for i in range(3))], num_samples=3)
    assert [first] == evaluate(SIX, num_samples=3)
    assert (second.data_source, second.mean.value) == ("math", 1.0)


@pytest.mark.parametrize(
    ("samples", "problems", "says"),
    [
        ([sample(0, 0), sample(0, 0)], None, "sample 0 occurs 2 times"),
        ([sample(0, 3)], None, "sample 3 was not asked for"),
        ([sample(5, 0)], {"aime24": [0]}, "problem 5: answered, but was not asked for"),
        ([sample(0, 0)], {"math": [0]}, "aime24 problem 0: answered, but was not asked for"),
        ([], None, "nothing to evaluate"),
    ],
)
def test_samples_that_cannot_be_right_are_refused(samples, problems, says):
    with pytest.raises(ValueError, match=says):
        evaluate(samples, num_samples=3, problems=problems)


def test_metric_names_are_verls_and_an_undefined_error_has_none():
    metrics = as_metrics(evaluate(SIX, num_samples=3))
    found = {"pass@1": 1 / 2, "pass@2": 5 / 6, "pass@3": 1, "maj@3": 1 / 2}
    assert {name: metrics[f"val-aux/aime24/acc/{name}"] for name in found} == pytest.approx(found)
    assert metrics["val-core/aime24/acc/mean@3"] == pytest.approx(0.5)
    assert metrics["val-core/aime24/acc/mean@3/stderr"] == pytest.approx(1 / 6)
    assert metrics["val-aux/aime24/reward/mean@3"] == pytest.approx(0.5)
    assert not any(name.endswith("stderr") for name in as_metrics(evaluate([sample(0, 0)], num_samples=1)))


# By hand. plan: means 1/3 and 1, sd sqrt(2)/3, error 1/3. hard_x: the one problem that has it, 0.75 over two answers.
def test_further_numbers_have_means_over_the_answers_that_have_them_and_replace_no_metric():
    reward = [dataclasses.replace(one, numbers={**one.numbers, "reward": 9.0}) for one in NUMBERED]
    results = evaluate(reward, num_samples=3)
    assert results[0].estimates["plan/mean"] == pytest.approx((2 / 3, 1 / 3))
    assert results[0].num_answers == {"hard_x": 2, "plan": 6, "reward": 6}
    metrics = as_metrics(results)
    assert metrics["val-aux/aime24/hard_x/mean@3"] == 0.75
    assert "val-aux/aime24/hard_x/mean@3/stderr" not in metrics, "one problem tells no error"
    assert metrics["val-aux/aime24/reward/mean@3"] == pytest.approx(0.5)


def test_the_table_shows_errors_and_what_numbers_rest_on():
    rows = rows_of(evaluate([*NUMBERED, *(sample(0, i, source="math", numbers={"[/x]": 1.0}) for i in range(3))], num_samples=3))  # fmt: skip
    assert rows["problems × answers"] == ["2 × 3", "1 × 3"]
    assert rows["acc/pass@2"] == ["0.833 ± 0.167", "1.000"]
    assert rows["acc/maj"] == ["0.500 ± 0.500", "1.000"]
    assert rows["hard_x/mean"] == ["0.750 (2 of 6)", "–"]
    assert rows["[/x]/mean"] == ["–", "1.000"]
    assert rows["num_truncated"] == ["1", "0"]


def test_generations_survive_the_file_and_another_file_is_refused(tmp_path):
    path = tmp_path / "eval" / "generations.parquet"
    samples = [*SIX, sample(0, 0, source="math", response="\x00 ünïcode \u2028", score=-1.0, failed=True)]
    write_generations(path, reversed(samples))
    assert read_generations(path.read_bytes()) == samples  # sorted again: data source, problem, sample
    assert [item.name for item in path.parent.iterdir()] == ["generations.parquet"]
    pq.write_table(pq.read_table(path).drop_columns(["acc"]), path)
    with pytest.raises(ValueError, match="must be"):
        read_generations(path.read_bytes())
