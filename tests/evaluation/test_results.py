"""From samples to a table and a file."""

import dataclasses
import io
import math
import random

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from opd.evaluation.estimators import clustered
from opd.evaluation.report import result_table
from opd.evaluation.results import as_metrics, evaluate
from opd.evaluation.samples import Sample, read_generations, write_generations


def sample(problem: int, number: int, *, pred: str = "7", right: bool = True, source: str = "aime24", **changes):
    return Sample(
        **{
            "run_id": "opd-run",
            "step": 20,
            "data_source": source,
            "problem_index": problem,
            "sample_index": number,
            "prompt": "<user>3+4?",
            "response": f"it is {pred}",
            "pred": pred,
            "ground_truth": "7",
            "score": float(right),
            "acc": float(right),
            "failed": False,
            "num_tokens": 10,
            "truncated": False,
            **changes,
        }
    )


def two_problems() -> list[Sample]:
    """Problem 0: right, wrong, wrong; problem 1: right, right, no answer."""
    return [
        sample(0, 0),
        sample(0, 1, pred="8", right=False),
        sample(0, 2, pred="8", right=False),
        sample(1, 0),
        sample(1, 1),
        sample(1, 2, pred="", right=False, num_tokens=40, truncated=True),
    ]


def values(estimates) -> list[float]:
    return [estimate.value for estimate in estimates]


# By hand. pass@k: problem 0 (n=3, c=1): 1/3, 2/3, 1; problem 1 (n=3, c=2): 2/3, 1, 1.
# maj@k: problem 0: 1/3, 1/3, 0; problem 1: 2/3, then {r,r}, {r,-}, {r,-} all right: 1, 1.
def test_two_problems_by_hand():
    (result,) = evaluate(two_problems(), num_samples=3)
    assert (result.data_source, result.num_problems, result.num_samples) == ("aime24", 2, 3)
    assert result.mean == pytest.approx((1 / 2, 1 / 6))  # means 1/3 and 2/3: sd sqrt(1/18), error sqrt(1/36)
    assert values(result.pass_at) == pytest.approx([1 / 2, 5 / 6, 1.0])
    assert result.accuracy.std == pytest.approx((math.sqrt(2) / 3, 0.0))  # two of one and one of the other: sqrt(2/9)
    assert values(result.majority_at) == pytest.approx([1 / 2, 2 / 3, 1 / 2])
    assert result.pass_at[1].standard_error == pytest.approx(1 / 6)  # 2/3 and 1
    assert result.pass_at[2].standard_error == 0.0
    assert (result.num_missing, result.num_failed, result.num_unanswered, result.num_truncated) == (0, 0, 1, 1)
    assert result.mean_num_tokens == pytest.approx((5 * 10 + 40) / 6)
    assert result.accuracy_by_problem == pytest.approx({0: 1 / 3, 1: 2 / 3})


def plus_or_minus(samples: list[Sample]) -> list[Sample]:
    """The same answers scored as math_dapo does."""
    return [dataclasses.replace(item, score=2 * item.acc - 1) for item in samples]


def test_rewards_have_a_spread_and_a_vote_of_their_own():
    (result,) = evaluate(plus_or_minus(two_problems()), num_samples=3, worst_reward=-1.0)
    assert result.reward.mean.value == pytest.approx(0.0)
    assert result.reward.std.value == pytest.approx(2 * math.sqrt(2) / 3)
    # Problem 0: 8 wins against 7 but where it ties; problem 1: only the silent answer alone loses.
    assert values(result.reward.majority_at) == pytest.approx([(-1 / 3 + 1 / 3) / 2, (-1 / 3 + 1) / 2, (-1 + 1) / 2])


def test_an_answer_that_never_came_has_the_worst_reward():
    came = plus_or_minus([sample(0, 0), sample(0, 1)])
    (result,) = evaluate(came, num_samples=4, worst_reward=-1.0)
    assert result.reward.mean.value == pytest.approx(0.0)
    assert result.mean.value == 0.5


def test_problems_that_were_not_asked_are_counted_and_wrong_in_the_mean_of_all():
    (result,) = evaluate(two_problems(), num_samples=3, num_dropped={"aime24": 2, "math": 7})
    assert (result.num_problems, result.num_dropped) == (2, 2)
    assert result.mean.value == pytest.approx(1 / 2)
    assert result.mean_of_all == pytest.approx(clustered([1 / 3, 2 / 3, 0.0, 0.0]))
    metrics = as_metrics([result])
    assert metrics["val-core/aime24/acc/mean@3"] == pytest.approx(1 / 2)
    assert metrics["val-aux/aime24/acc_of_all/mean@3"] == pytest.approx(1 / 4)
    assert metrics["val-aux/aime24/num_dropped"] == 2.0


def test_the_order_of_the_samples_does_not_matter():
    shuffled = two_problems()
    random.Random(0).shuffle(shuffled)
    assert evaluate(shuffled, num_samples=3) == evaluate(two_problems(), num_samples=3)


def test_an_answer_that_never_came_is_wrong_and_counted():
    full = evaluate(two_problems(), num_samples=3)[0]
    fewer = evaluate(two_problems()[1:], num_samples=3)[0]  # without the only right answer to problem 0
    assert fewer.num_missing == 1
    assert fewer.mean.value == pytest.approx(full.mean.value - 1 / 6)
    assert values(fewer.pass_at)[2] == pytest.approx(1 / 2)


def test_a_problem_none_of_whose_answers_came_is_wrong_and_counted():
    (result,) = evaluate(two_problems(), num_samples=3, problems={"aime24": [0, 1, 2]})
    assert (result.num_problems, result.num_missing) == (3, 3)
    assert result.mean.value == pytest.approx(1 / 3)
    assert result.accuracy_by_problem[2] == 0.0


def test_a_data_set_none_of_whose_answers_came_still_has_a_line():
    results = evaluate([], num_samples=2, problems={"aime25": [4]})
    assert results[0].mean.value == 0.0
    assert math.isnan(results[0].mean_num_tokens)
    assert "aime25" in rendered(results)


def test_failed_scorers_are_counted():
    (result,) = evaluate([sample(0, 0, pred="", right=False, failed=True)], num_samples=1)
    assert (result.num_failed, result.num_unanswered) == (1, 1)


def test_data_sets_are_evaluated_apart():
    both = two_problems() + [sample(0, i, source="math") for i in range(3)]
    results = evaluate(both, num_samples=3)
    assert [result.data_source for result in results] == ["aime24", "math"]
    assert results[0] == evaluate(two_problems(), num_samples=3)[0]
    assert results[1].mean.value == 1.0


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


def test_metric_names_are_verls_and_hold_every_k():
    metrics = as_metrics(evaluate(two_problems(), num_samples=3))
    assert metrics["val-core/aime24/acc/mean@3"] == pytest.approx(0.5)
    assert metrics["val-core/aime24/acc/mean@3/stderr"] == pytest.approx(1 / 6)
    assert [metrics[f"val-aux/aime24/acc/pass@{k}"] for k in (1, 2, 3)] == pytest.approx([1 / 2, 5 / 6, 1])
    assert [metrics[f"val-aux/aime24/acc/maj@{k}"] for k in (1, 2, 3)] == pytest.approx([1 / 2, 2 / 3, 1 / 2])
    assert metrics["val-aux/aime24/reward/mean@3"] == pytest.approx(0.5)
    assert metrics["val-aux/aime24/num_truncated"] == 1.0
    for quantity in ("acc", "reward"):
        for name in ("std@3", *(f"maj@{k}" for k in (1, 2, 3))):
            assert {f"val-aux/aime24/{quantity}/{name}", f"val-aux/aime24/{quantity}/{name}/stderr"} <= metrics.keys()


def test_a_standard_error_that_does_not_exist_is_no_metric():
    metrics = as_metrics(evaluate([sample(0, 0)], num_samples=1))
    assert "val-core/aime24/acc/mean@1" in metrics
    assert not any(name.endswith("stderr") for name in metrics)
    assert not any(math.isnan(value) for value in metrics.values())


def with_numbers() -> list[Sample]:
    """`two_problems` with a number that all answers have, and one that two of problem 0 and none of problem 1 have."""
    plans = ({"plan": 1.0, "hard_x": 0.5}, {"plan": 0.0}, {"plan": 0.0, "hard_x": 1.0}, *({"plan": 1.0},) * 3)
    return [dataclasses.replace(item, numbers=numbers) for item, numbers in zip(two_problems(), plans, strict=True)]


# By hand. plan: means 1/3 and 1, sd sqrt(2)/3, error 1/3. hard_x: the one problem that has it, 0.75 over two answers.
def test_further_numbers_have_means_over_the_answers_that_have_them_and_the_count_of_these():
    (result,) = evaluate(with_numbers(), num_samples=3)
    assert list(result.numbers) == ["hard_x", "plan"]
    assert result.numbers["plan"].mean == pytest.approx((2 / 3, 1 / 3))
    assert result.numbers["hard_x"].mean.value == 0.75
    assert [number.num_answers for number in result.numbers.values()] == [2, 6]
    assert evaluate(two_problems(), num_samples=3)[0].numbers == {}


def test_further_numbers_are_metrics_as_in_a_training_and_replace_none_of_the_evaluations_own():
    reward = [dataclasses.replace(item, numbers={**item.numbers, "reward": 9.0}) for item in with_numbers()]
    metrics = as_metrics(evaluate(reward, num_samples=3))
    assert metrics["val-aux/aime24/plan/mean@3"] == pytest.approx(2 / 3)
    assert metrics["val-aux/aime24/plan/mean@3/stderr"] == pytest.approx(1 / 3)
    assert metrics["val-aux/aime24/hard_x/mean@3"] == 0.75
    assert "val-aux/aime24/hard_x/mean@3/stderr" not in metrics, "one problem tells no error"
    assert metrics["val-aux/aime24/reward/mean@3"] == pytest.approx(0.5)


def test_the_table_shows_further_numbers_and_what_they_rest_on_where_some_answers_lack_them():
    both = [*with_numbers(), *(sample(0, i, source="math", numbers={"[/x]": 1.0}) for i in range(3))]
    text = rendered(evaluate(both, num_samples=3))
    lines = {line.split("│")[1].strip(): line.split("│")[2:4] for line in text.splitlines() if "│" in line}
    assert [cell.strip() for cell in lines["plan mean@n"]] == ["0.667 ± 0.333", "–"]
    assert [cell.strip() for cell in lines["hard_x mean@n"]] == ["0.750 (2 of 6)", "–"]
    assert [cell.strip() for cell in lines["[/x] mean@n"]] == ["–", "1.000"]


def rendered(results) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(result_table(results))
    return console.export_text()


def test_the_table_shows_values_with_errors_in_percent():
    lines = {
        line.split("│")[1].strip(): line
        for line in rendered(evaluate(two_problems(), num_samples=3)).splitlines()
        if "│" in line
    }
    assert "50.0 ± 16.7" in lines["mean@n"]
    assert "83.3 ± 16.7" in lines["pass@2"]
    assert "50.0 ± 50.0" in lines["maj@3"]
    assert "2 × 3" in lines["problems × answers"]
    assert lines["cut at the limit"].split("│")[2].strip() == "1"
    assert "47.1 ± 0.0" in lines["std@n"]
    assert not [name for name in lines if "too long" in name or "reward" in name]


def test_the_table_counts_what_was_not_asked_and_shows_the_score_with_and_without_it():
    text = rendered(evaluate(two_problems(), num_samples=3, num_dropped={"aime24": 2}))
    lines = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in text.splitlines() if "│" in line}
    assert lines["mean@n"] == "50.0 ± 16.7"
    assert lines["not asked: prompt too long"] == "2"
    assert lines["mean@n, those as wrong"] == "25.0 ± 16.0"


def test_generations_survive_the_file(tmp_path):
    path = tmp_path / "eval" / "generations.parquet"
    samples = [*two_problems(), sample(0, 0, source="math", response="\x00 ünïcode \u2028", score=-1.0, failed=True)]
    write_generations(path, reversed(samples))
    assert read_generations(path) == samples  # sorted again: data source, problem, sample
    assert [item.name for item in path.parent.iterdir()] == ["generations.parquet"]


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "other.parquet"
    write_generations(path, two_problems())
    table = pq.read_table(path).drop_columns(["acc"])
    pq.write_table(table, path)
    with pytest.raises(ValueError, match="must be"):
        read_generations(path)
