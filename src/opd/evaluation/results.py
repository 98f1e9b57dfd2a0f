"""Results of an evaluation: numbers of each data set from its answers, as metrics, as a record and as a table."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.markup import escape
from rich.table import Table

from opd.evaluation.estimators import Estimate, Floats, clustered, majority, pass_at_every_k
from opd.evaluation.samples import Sample
from opd.rewards import NO_ANSWER_PREDICTIONS

MEAN, OF_ALL, STD, MAJORITY, REWARD = "acc/mean", "acc_of_all/mean", "acc/std", "acc/maj", "reward/mean"


class SetResult(NamedTuple):
    """The evaluation of one data set; a missing answer counts as wrong, with the worst reward and no vote."""

    data_source: str
    num_problems: int
    """Problems that were asked."""
    num_samples: int
    """n: answers asked for of the problem that has fewest; a prompt that several rows repeat is one problem."""
    estimates: Mapping[str, Estimate]
    """By the metric's name without source and n. `acc_of_all/mean`: problems that were not asked count as wrong; `acc/std`:
    the deviation (over n, as verl's) of a problem's n accuracies; `acc/maj`: of the answer that most of n give. `NAME/mean` of
    the answers' tokens and further numbers: over the problems that have it in some answer, each by the mean of these answers."""
    num_answers: Mapping[str, int]
    """Answers that have a further number (`samples.further_numbers`), by its name."""
    counts: Mapping[str, int]
    """Problems that were too long to be asked (`num_dropped`). Answers that came, that never came, whose scorer failed, in
    which it found no answer, and that were cut at the limit."""
    accuracy_by_problem: Mapping[int, float]
    num_right_by_problem: Mapping[int, int]

    @property
    def mean(self) -> Estimate:
        """Return mean@n of the accuracy."""
        return self.estimates[MEAN]

    def unread_note(self, function: str) -> str:
        """Return why an accuracy of 0 says nothing; empty unless the reward function found no answer in any response."""
        counts = self.counts
        if not 0 < counts["num_came"] == counts["num_unanswered"]:
            return ""
        return (
            f"reward.function={function} found no answer in any of {counts['num_came']} responses ({counts['num_truncated']} "
            "were cut at the limit). The accuracy says nothing of the model. See also eval.instruction_variant and "
            "data.max_response_length"
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
    accuracies = [_filled([s.acc for s in group], size, 0.0) for group, size in sized]
    rewards = [_filled([s.score for s in group], size, worst_reward) for group, size in sized]
    means = [float(values.mean()) for values in accuracies]
    num_right = [sum(map(is_right, group)) for group in answers]
    rates = [pass_at_every_k(right, size)[: min(sizes)] for right, size in zip(num_right, sizes, strict=True)]
    numbers = {name: [[s.numbers[name] for s in group if name in s.numbers] for group in answers]
               for name in sorted({name for sample in came for name in sample.numbers})}  # fmt: skip
    measured = numbers | {"num_tokens": [[float(s.num_tokens) for s in group] for group in answers]}
    return SetResult(
        data_source=source,
        num_problems=len(indices),
        num_samples=min(sizes),
        estimates={
            **{f"{name}/mean": _mean(values) for name, values in measured.items() if any(values)},
            MEAN: clustered(means),
            OF_ALL: clustered([*means, *[0.0] * num_dropped]),
            STD: clustered([float(values.std()) for values in accuracies]),
            **{f"acc/pass@{k}": clustered(column) for k, column in enumerate(np.stack(rates).T, start=1)},
            MAJORITY: clustered([majority(_votes(group)) for group in answers]),
            REWARD: clustered([float(values.mean()) for values in rewards]),
        },
        num_answers={name: sum(map(len, values)) for name, values in numbers.items()},
        counts={
            "num_dropped": num_dropped,
            "num_came": len(came),
            "num_missing": sum(sizes) - len(came),
            "num_failed": sum(sample.failed for sample in came),
            "num_unanswered": sum(sample.pred in NO_ANSWER_PREDICTIONS for sample in came),
            "num_truncated": sum(sample.truncated for sample in came),
        },
        accuracy_by_problem=dict(zip(indices, means, strict=True)),
        num_right_by_problem=dict(zip(indices, num_right, strict=True)),
    )


def _check_answers(source: str, index: int, answers: Sequence[Sample], num_samples: int) -> None:
    for number, count in Counter(sample.sample_index for sample in answers).items():
        if count > 1:
            raise ValueError(f"{source} problem {index}: sample {number} occurs {count} times")
        if not 0 <= number < num_samples:
            raise ValueError(f"{source} problem {index}: sample {number} was not asked for (n = {num_samples})")


def _filled(values: Sequence[float], num: int, missing: float) -> Floats:
    """Return the values and `missing` for those that lack; sorted, as a sum's last bit follows its order."""
    return np.array([*sorted(values), *[missing] * (num - len(values))])


def _mean(by_problem: Sequence[Sequence[float]]) -> Estimate:
    return clustered([float(np.mean(sorted(values))) for values in by_problem if values])


def _votes(group: Iterable[Sample]) -> dict[str, list[float]]:
    """Return the accuracies of each answer that the scorer found."""
    by_answer: defaultdict[str, list[float]] = defaultdict(list)
    for sample in group:
        if sample.pred not in NO_ANSWER_PREDICTIONS:
            by_answer[sample.pred].append(sample.acc)
    return by_answer


def as_metrics(results: Sequence[SetResult]) -> dict[str, float]:
    """Return the results under metric names in verl's manner; an undefined standard error is left out."""
    metrics: dict[str, float] = {}
    for result in results:
        for key, estimate in result.estimates.items():
            of_n = key if "@" in key else f"{key}@{result.num_samples}"
            name = f"val-{'core' if key == MEAN else 'aux'}/{result.data_source}/{of_n}"
            metrics[name] = estimate.value
            if not math.isnan(estimate.standard_error):
                metrics[f"{name}/stderr"] = estimate.standard_error
        for count, value in result.counts.items():
            metrics[f"val-aux/{result.data_source}/{count}"] = float(value)
    return metrics


def as_record(result: SetResult) -> dict[str, Any]:
    """Return what `result.json` holds of a data set."""
    errors = {key: found.standard_error for key, found in result.estimates.items()}
    return {
        "num_problems": result.num_problems,
        "num_samples": result.num_samples,
        **result.counts,
        "means": {key: found.value for key, found in result.estimates.items()},
        "standard_errors": {key: None if math.isnan(error) else error for key, error in errors.items()},
        "num_answers": dict(result.num_answers),
    }


def result_table(results: Sequence[SetResult]) -> Table:
    """Return a table with a column for each data set: estimates with standard errors, and counts."""
    table = Table("", title="Evaluation", caption="mean ± standard error, clustered by problem")
    for result in results:
        table.add_column(escape(result.data_source), justify="right")
    table.add_row("problems × answers", *(f"{result.num_problems} × {result.num_samples}" for result in results))
    for key in dict.fromkeys(key for result in results for key in result.estimates):
        k = int(key.rpartition("@")[2]) if "@" in key else 1
        if k.bit_count() == 1 or k == max(result.num_samples for result in results):
            table.add_row(escape(key), *(_cell(result, key) for result in results))
    for count in results[0].counts:
        table.add_row(count, *(str(result.counts[count]) for result in results))
    return table


def _cell(result: SetResult, key: str) -> str:
    """Return `0.433 ± 0.071`, without an error where there is none, with the count of answers where some lack the number."""
    if key not in result.estimates:
        return "–"
    value, error = result.estimates[key]
    num_asked = result.num_problems * result.num_samples
    num = result.num_answers.get(key.removesuffix("/mean"), num_asked)
    return (
        f"{value:.3f}"
        + ("" if math.isnan(error) else f" ± {error:.3f}")
        + (f" ({num} of {num_asked})" if num < num_asked else "")
    )
