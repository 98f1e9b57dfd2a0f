"""From samples to results: what every data set's answers say, with what is missing counted as wrong."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from opd.evaluation.estimators import (
    Estimate,
    Floats,
    clustered,
    majority_at_every_k,
    pass_at_every_k,
)
from opd.evaluation.samples import Sample
from opd.rewards import NO_ANSWER_PREDICTIONS


def shown_ks(num_samples: int) -> list[int]:
    """The k a table has room for: powers of two, and n."""
    powers = [2**exponent for exponent in range(num_samples.bit_length()) if 2**exponent < num_samples]
    return [*powers, num_samples]


class Summary(NamedTuple):
    """One quantity of a data set's answers: their accuracy or their reward."""

    mean: Estimate
    """mean@n."""
    std: Estimate
    """std@n: the standard deviation (over n, as verl's) of a problem's n values, as a mean over problems."""
    majority_at: tuple[Estimate, ...]
    """Entry k-1: maj@k, that of the answer that most of k give."""


class NumberResult(NamedTuple):
    """One of the further numbers that a scorer gave, over the answers that have it."""

    mean: Estimate
    """mean@n as in a training run's validation: a problem's value is the mean of those of its answers that have the number,
    and problems none of whose answers has it do not count."""
    num_answers: int
    """Answers that have it."""


class SetResult(NamedTuple):
    """The evaluation of one data set."""

    data_source: str
    num_problems: int
    """Problems that were asked."""
    num_dropped: int
    """Problems that were not, since their prompts were too long."""
    num_samples: int
    """n: answers asked for per problem."""
    accuracy: Summary
    reward: Summary
    mean_of_all: Estimate
    """mean@n of the accuracy over all problems, those that were not asked counted as wrong."""
    pass_at: tuple[Estimate, ...]
    """Entry k-1: pass@k."""
    num_missing: int
    """Answers that were asked for and never came (failed rollouts): counted as wrong, with the worst reward and no vote."""
    num_failed: int
    """Answers whose scorer failed."""
    num_unanswered: int
    """Answers in which no answer was found; the missing are not among them."""
    num_truncated: int
    mean_num_tokens: float
    """Per answer that came; NaN if none did."""
    accuracy_by_problem: Mapping[int, float]
    """For paired comparisons: the mean accuracy of each problem."""
    num_right_by_problem: Mapping[int, int]
    """Likewise: how many of each problem's n answers were right."""
    numbers: Mapping[str, NumberResult]
    """Of each further number (`samples.further_numbers`), by name."""

    @property
    def mean(self) -> Estimate:
        """mean@n of the accuracy over the problems that were asked."""
        return self.accuracy.mean

    @property
    def majority_at(self) -> tuple[Estimate, ...]:
        """Entry k-1: maj@k of the accuracy."""
        return self.accuracy.majority_at


def evaluate(
    samples: Iterable[Sample],
    *,
    num_samples: int,
    problems: Mapping[str, Iterable[int]] | None = None,
    num_dropped: Mapping[str, int] | None = None,
    worst_reward: float = 0.0,
) -> list[SetResult]:
    """The results of every data set, in the order of their names.

    Args:
        samples: in any order, of any number of data sets.
        num_samples: n, the answers each problem was asked for.
        problems: the problem indices of each data set that were asked (a set without any gives no result); a problem none of whose answers came is then
            counted as wrong. By default, those that occur in `samples`.
        num_dropped: how many further problems of each data set were not asked.
        worst_reward: what an answer that never came gets.

    Raises:
        ValueError: no samples at all, a sample twice, or one that was not asked for.
    """
    by_problem: dict[str, dict[int, list[Sample]]] = {
        source: {index: [] for index in indices} for source, indices in (problems or {}).items()
    }
    for sample in samples:
        by_index = (
            by_problem.setdefault(sample.data_source, {}) if problems is None else by_problem.get(sample.data_source)
        )
        if by_index is None or (problems is not None and sample.problem_index not in by_index):
            raise ValueError(f"{sample.data_source} problem {sample.problem_index}: answered, but was not asked for")
        by_index.setdefault(sample.problem_index, []).append(sample)
    if not any(by_problem.values()):
        raise ValueError("nothing to evaluate: no samples and no problems")
    for source, by_index in by_problem.items():
        for index, answers in by_index.items():
            _check_answers(source, index, answers, num_samples)
    return [
        _evaluate_set(source, by_problem[source], num_samples, (num_dropped or {}).get(source, 0), worst_reward)
        for source in sorted(by_problem)
        if by_problem[source]
    ]


def as_metrics(results: Sequence[SetResult]) -> dict[str, float]:
    """The results under metric names in verl's manner; an undefined standard error is left out.

    Of the accuracy pass@k and maj@k for every k up to n; the reward's maj@k for the k that verl has;
    of further numbers the mean, unless one has the name of a metric above.
    """
    metrics: dict[str, float] = {}
    for result in results:
        source, n = result.data_source, result.num_samples
        named = {f"val-aux/{source}/{name}/mean@{n}": number.mean for name, number in result.numbers.items()}
        named[f"val-core/{source}/acc/mean@{n}"] = result.mean
        named[f"val-aux/{source}/acc_of_all/mean@{n}"] = result.mean_of_all
        named[f"val-aux/{source}/reward/mean@{n}"] = result.reward.mean
        for k in range(1, n + 1):
            named[f"val-aux/{source}/acc/pass@{k}"] = result.pass_at[k - 1]
            named[f"val-aux/{source}/acc/maj@{k}"] = result.majority_at[k - 1]
        for quantity, summary in (("acc", result.accuracy), ("reward", result.reward)):
            named[f"val-aux/{source}/{quantity}/std@{n}"] = summary.std
            for k in shown_ks(n):
                named[f"val-aux/{source}/{quantity}/maj@{k}"] = summary.majority_at[k - 1]
        for name, estimate in named.items():
            metrics[name] = estimate.value
            if not np.isnan(estimate.standard_error):
                metrics[f"{name}/stderr"] = estimate.standard_error
        for count in ("num_dropped", "num_missing", "num_failed", "num_unanswered", "num_truncated"):
            metrics[f"val-aux/{source}/{count}"] = float(getattr(result, count))
    return metrics


def _check_answers(source: str, index: int, answers: Sequence[Sample], num_samples: int) -> None:
    counts = Counter(sample.sample_index for sample in answers)
    for sample_index, count in counts.items():
        if count > 1:
            raise ValueError(f"{source} problem {index}: sample {sample_index} occurs {count} times")
        if not 0 <= sample_index < num_samples:
            raise ValueError(f"{source} problem {index}: sample {sample_index} was not asked for (n = {num_samples})")


def _evaluate_set(
    source: str, by_index: Mapping[int, Sequence[Sample]], num_samples: int, num_dropped: int, worst_reward: float
) -> SetResult:
    indices = sorted(by_index)
    answers = [by_index[index] for index in indices]
    came = [sample for group in answers for sample in group]
    means = [sum(sample.acc for sample in group) / num_samples for group in answers]
    num_right = [sum(map(is_right, group)) for group in answers]
    passes = [pass_at_every_k(right, num_samples) for right in num_right]
    return SetResult(
        data_source=source,
        num_problems=len(indices),
        num_dropped=num_dropped,
        num_samples=num_samples,
        accuracy=_summary(answers, lambda sample: sample.acc, num_samples, worst=0.0),
        reward=_summary(answers, lambda sample: sample.score, num_samples, worst=worst_reward),
        mean_of_all=clustered([*means, *[0.0] * num_dropped]),
        pass_at=_at_every_k(passes),
        num_missing=len(indices) * num_samples - len(came),
        num_failed=sum(sample.failed for sample in came),
        num_unanswered=sum(sample.pred in NO_ANSWER_PREDICTIONS for sample in came),
        num_truncated=sum(sample.truncated for sample in came),
        mean_num_tokens=sum(sample.num_tokens for sample in came) / len(came) if came else float("nan"),
        accuracy_by_problem=dict(zip(indices, means, strict=True)),
        num_right_by_problem=dict(zip(indices, num_right, strict=True)),
        numbers={name: _number(answers, name) for name in sorted({name for sample in came for name in sample.numbers})},
    )


def is_right(sample: Sample) -> bool:
    """pass@k knows right and wrong only: partial accuracy is wrong."""
    return sample.acc == 1.0


def _number(answers: Sequence[Sequence[Sample]], name: str) -> NumberResult:
    values = [[sample.numbers[name] for sample in group if name in sample.numbers] for group in answers]
    # Sorted: a sum's last bit follows its order, and answers come in any.
    means = [float(np.mean(sorted(group))) for group in values if group]
    return NumberResult(clustered(means), sum(map(len, values)))


def _summary(
    answers: Sequence[Sequence[Sample]], value: Callable[[Sample], float], num_samples: int, *, worst: float
) -> Summary:
    """Of `value` over the problems' answers; one that never came has the value `worst`."""
    full = [np.array([value(s) for s in group] + [worst] * (num_samples - len(group))) for group in answers]
    return Summary(
        mean=clustered([values.mean() for values in full]),
        std=clustered([values.std() for values in full]),
        majority_at=_at_every_k([_majority(group, value, num_samples, worst) for group in answers]),
    )


def _at_every_k(by_problem: Sequence[Floats]) -> tuple[Estimate, ...]:
    return tuple(clustered(column) for column in np.stack(by_problem).T)


def _majority(group: Sequence[Sample], value: Callable[[Sample], float], num_samples: int, worst: float) -> Floats:
    """maj@k over the answers that were really extracted."""
    by_answer: defaultdict[str, list[float]] = defaultdict(list)
    for sample in group:
        if sample.pred not in NO_ANSWER_PREDICTIONS:
            by_answer[sample.pred].append(value(sample))
    votes = [len(values) for values in by_answer.values()]
    means = [sum(values) / len(values) for values in by_answer.values()]
    return majority_at_every_k(votes, means, num_samples, without_vote=worst)
