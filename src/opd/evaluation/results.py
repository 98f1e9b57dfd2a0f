"""Results of an evaluation: numbers of each data set from its answers, as metrics, as a record and as a table."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.markup import escape
from rich.table import Table

from opd.evaluation.estimators import Estimate, Floats, clustered, majority_at_every_k, pass_at_every_k
from opd.evaluation.samples import Sample
from opd.rewards import NO_ANSWER_PREDICTIONS


class NumberResult(NamedTuple):
    """A further number of the scorer, over the answers that have it."""

    mean: Estimate
    """Mean over the problems that have it in some answer; a problem's value is the mean of these answers."""
    num_answers: int


class SetResult(NamedTuple):
    """The evaluation of one data set; a missing answer counts as wrong, with the worst reward and no vote."""

    data_source: str
    num_problems: int
    """Problems that were asked."""
    num_dropped: int
    """Problems that were not asked, because their prompts were too long."""
    num_samples: int
    """n: answers asked for of the problem that has fewest; a prompt that several rows repeat is one problem."""
    mean: Estimate
    """mean@n of the accuracy."""
    std: Estimate
    """std@n: the standard deviation (over n, as verl's) of a problem's n accuracies, as a mean over problems."""
    mean_of_all: Estimate
    """mean@n where problems that were not asked count as wrong."""
    pass_at: tuple[Estimate, ...]
    """Entry k-1: pass@k."""
    majority_at: tuple[Estimate, ...]
    """Entry k-1: maj@k, the accuracy of the answer that most of k give."""
    reward: Estimate
    """mean@n of the reward."""
    num_missing: int
    """Answers that never came (failed rollouts)."""
    num_failed: int
    """Answers whose scorer failed."""
    num_unanswered: int
    """Answers that came and in which the scorer found no answer."""
    num_truncated: int
    mean_num_tokens: float
    """Tokens of an answer that came; NaN if none did."""
    accuracy_by_problem: Mapping[int, float]
    num_right_by_problem: Mapping[int, int]
    numbers: Mapping[str, NumberResult]
    """Further numbers (`samples.further_numbers`) by name."""
    num_came: int = 0

    def unread_note(self) -> str:
        """Return why an accuracy of 0 says nothing where the scorer found no answer in any response."""
        return (
            f"the scorer found no answer in any of {self.num_came} responses ({self.num_truncated} were cut at the limit), so "
            "the accuracy says nothing of the model; see reward.function, eval.instruction_variant and data.max_response_length"
        )


def is_right(sample: Sample) -> bool:
    """Return True for full accuracy: pass@k knows right and wrong only."""
    return sample.acc == 1.0


def evaluate(
    samples: Iterable[Sample],
    *,
    num_samples: int,
    problems: Mapping[str, Iterable[int]] | None = None,
    num_dropped: Mapping[str, int] | None = None,
    worst_reward: float = 0.0,
) -> list[SetResult]:
    """Return the results of every data set, in the order of their names.

    Args:
        samples: in any order, of any number of data sets.
        num_samples: n, the answers each problem was asked for.
        problems: the problems of each data set that were asked, each as often as a row asks it; None means those that
            occur in `samples`.
        num_dropped: how many further problems of each data set were not asked.
        worst_reward: of an answer that never came.

    Raises:
        ValueError: no samples and no problems, a sample twice, or one that was not asked for.
    """
    repeats = {source: Counter(indices) for source, indices in (problems or {}).items()}
    sets = {source: {index: list[Sample]() for index in indices} for source, indices in repeats.items()}
    for sample in samples:
        source, index = sample.data_source, sample.problem_index
        if problems is not None and index not in sets.get(source, {}):
            raise ValueError(f"{source} problem {index}: answered, but was not asked for")
        sets.setdefault(source, {}).setdefault(index, []).append(sample)
    if not any(sets.values()):
        raise ValueError("nothing to evaluate: no samples and no problems")
    dropped = num_dropped or {}
    return [
        _evaluate_set(
            source,
            sets[source],
            [num_samples * (repeats[source][index] if source in repeats else 1) for index in sorted(sets[source])],
            dropped.get(source, 0),
            worst_reward,
        )
        for source in sorted(sets)
        if sets[source]
    ]


def _evaluate_set(
    source: str, by_index: Mapping[int, Sequence[Sample]], sizes: Sequence[int], num_dropped: int, worst_reward: float
) -> SetResult:
    """Return a data set's result; `sizes` are the answers asked for of each problem, in the order of the indices."""
    indices = sorted(by_index)
    answers = [by_index[index] for index in indices]
    for index, group, size in zip(indices, answers, sizes, strict=True):
        _check_answers(source, index, group, size)
    came = [sample for group in answers for sample in group]
    sized = list(zip(answers, sizes, strict=True))
    accuracies = [np.array([s.acc for s in group] + [0.0] * (size - len(group))) for group, size in sized]
    rewards = [np.array(sorted(s.score for s in group) + [worst_reward] * (size - len(group))) for group, size in sized]
    means = [float(values.mean()) for values in accuracies]
    num_right = [sum(map(is_right, group)) for group in answers]
    return SetResult(
        data_source=source,
        num_problems=len(indices),
        num_dropped=num_dropped,
        num_samples=min(sizes),
        mean=clustered(means),
        std=clustered([float(values.std()) for values in accuracies]),
        mean_of_all=clustered([*means, *[0.0] * num_dropped]),
        pass_at=_at_every_k([pass_at_every_k(right, size) for right, size in zip(num_right, sizes, strict=True)]),
        majority_at=_at_every_k([_majority(group, size) for group, size in sized]),
        reward=clustered([float(values.mean()) for values in rewards]),
        num_missing=sum(sizes) - len(came),
        num_failed=sum(sample.failed for sample in came),
        num_unanswered=sum(sample.pred in NO_ANSWER_PREDICTIONS for sample in came),
        num_truncated=sum(sample.truncated for sample in came),
        mean_num_tokens=sum(sample.num_tokens for sample in came) / len(came) if came else math.nan,
        accuracy_by_problem=dict(zip(indices, means, strict=True)),
        num_right_by_problem=dict(zip(indices, num_right, strict=True)),
        num_came=len(came),
        numbers={name: _number(answers, name) for name in sorted({name for sample in came for name in sample.numbers})},
    )


def _check_answers(source: str, index: int, answers: Sequence[Sample], num_samples: int) -> None:
    for number, count in Counter(sample.sample_index for sample in answers).items():
        if count > 1:
            raise ValueError(f"{source} problem {index}: sample {number} occurs {count} times")
        if not 0 <= number < num_samples:
            raise ValueError(f"{source} problem {index}: sample {number} was not asked for (n = {num_samples})")


def _number(answers: Sequence[Sequence[Sample]], name: str) -> NumberResult:
    values = [[sample.numbers[name] for sample in group if name in sample.numbers] for group in answers]
    # Sorted: a sum's last bit follows its order, and answers come in any.
    means = [float(np.mean(sorted(group))) for group in values if group]
    return NumberResult(clustered(means), sum(map(len, values)))


def _at_every_k(by_problem: Sequence[Floats]) -> tuple[Estimate, ...]:
    most = min(map(len, by_problem))
    return tuple(clustered(column) for column in np.stack([values[:most] for values in by_problem]).T)


def _majority(group: Sequence[Sample], num_samples: int) -> Floats:
    """Return maj@k over the answers that the scorer found."""
    by_answer: defaultdict[str, list[float]] = defaultdict(list)
    for sample in group:
        if sample.pred not in NO_ANSWER_PREDICTIONS:
            by_answer[sample.pred].append(sample.acc)
    votes = [len(values) for values in by_answer.values()]
    return majority_at_every_k(votes, [sum(values) / len(values) for values in by_answer.values()], num_samples)


def as_metrics(results: Sequence[SetResult]) -> dict[str, float]:
    """Return the results under metric names in verl's manner; an undefined standard error is left out."""
    metrics: dict[str, float] = {}
    for result in results:
        source, n = result.data_source, result.num_samples
        named = {f"val-aux/{source}/{name}/mean@{n}": number.mean for name, number in result.numbers.items()}
        named |= {
            f"val-core/{source}/acc/mean@{n}": result.mean,
            f"val-aux/{source}/acc/std@{n}": result.std,
            f"val-aux/{source}/acc_of_all/mean@{n}": result.mean_of_all,
            f"val-aux/{source}/reward/mean@{n}": result.reward,
        }
        for k in range(1, n + 1):
            named[f"val-aux/{source}/acc/pass@{k}"] = result.pass_at[k - 1]
            named[f"val-aux/{source}/acc/maj@{k}"] = result.majority_at[k - 1]
        for name, estimate in named.items():
            metrics[name] = estimate.value
            if not math.isnan(estimate.standard_error):
                metrics[f"{name}/stderr"] = estimate.standard_error
        for count in ("num_dropped", "num_missing", "num_failed", "num_unanswered", "num_truncated"):
            metrics[f"val-aux/{source}/{count}"] = float(getattr(result, count))
    return metrics


def as_record(result: SetResult) -> dict[str, Any]:
    """Return what `result.json` holds of a data set."""

    def of(estimate: Estimate) -> dict[str, float | None]:
        error = estimate.standard_error
        return {"mean": estimate.value, "standard_error": None if math.isnan(error) else error}

    return {
        "num_problems": result.num_problems,
        "num_samples": result.num_samples,
        **of(result.mean),
        "num_dropped": result.num_dropped,
        "mean_of_all": result.mean_of_all.value,
        "standard_error_of_all": of(result.mean_of_all)["standard_error"],
        "std": result.std.value,
        "pass_at": [estimate.value for estimate in result.pass_at],
        "maj_at": [estimate.value for estimate in result.majority_at],
        "reward": of(result.reward),
        "numbers": {
            name: of(number.mean) | {"num_answers": number.num_answers} for name, number in result.numbers.items()
        },
    }


def result_table(results: Sequence[SetResult]) -> Table:
    """Return a table with a column for each data set: percent with standard errors, and counts of what failed."""
    n = max(result.num_samples for result in results)
    table = Table("", title="Evaluation", caption="percent ± standard error, clustered by problem")
    for result in results:
        table.add_column(escape(result.data_source), justify="right")
    table.add_row("problems × answers", *(f"{result.num_problems} × {result.num_samples}" for result in results))
    table.add_row("mean@n", *(_percent(result.mean) for result in results))
    if any(result.num_dropped for result in results):
        table.add_row("not asked: prompt too long", *(str(result.num_dropped) for result in results))
        table.add_row("mean@n, those as wrong", *(_percent(result.mean_of_all) for result in results))
    if n > 1:
        table.add_row("std@n", *(_percent(result.std) for result in results))
    for name in ("pass", "majority"):
        columns = [getattr(result, f"{name}_at") for result in results]
        for k in (k for k in range(2, n + 1) if k == n or k.bit_count() == 1):
            cells = (_percent(values[k - 1]) if k <= len(values) else "–" for values in columns)
            table.add_row(f"{name.removesuffix('ority')}@{k}", *cells)
    if any(result.reward != result.mean for result in results):
        table.add_row("reward mean@n", *(_plain(result.reward) for result in results))
    for name in sorted({name for result in results for name in result.numbers}):
        table.add_row(escape(f"{name} mean@n"), *(_number_cell(result, name) for result in results))
    lengths = (result.mean_num_tokens for result in results)
    table.add_row("tokens an answer", *("–" if math.isnan(length) else f"{length:.0f}" for length in lengths))
    for label, count in (
        ("answers missing", "num_missing"),
        ("scorer failed", "num_failed"),
        ("no answer found", "num_unanswered"),
        ("cut at the limit", "num_truncated"),
    ):
        table.add_row(label, *(str(getattr(result, count)) for result in results))
    return table


def _percent(estimate: Estimate) -> str:
    return _plain(Estimate(100 * estimate.value, 100 * estimate.standard_error), digits=1)


def _plain(estimate: Estimate, digits: int = 3) -> str:
    """Return `0.433 ± 0.071`, or the value alone where it has no standard error."""
    error = "" if math.isnan(estimate.standard_error) else f" ± {estimate.standard_error:.{digits}f}"
    return f"{estimate.value:.{digits}f}{error}"


def _number_cell(result: SetResult, name: str) -> str:
    """Return the mean of a further number, with the count of answers where some lack it."""
    if name not in result.numbers:
        return "–"
    mean, num_answers = result.numbers[name]
    num_asked = result.num_problems * result.num_samples
    return _plain(mean) + (f" ({num_answers} of {num_asked})" if num_answers < num_asked else "")
