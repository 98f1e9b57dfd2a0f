"""From samples to results: every data set's mean@n, pass@k and maj@k, with what is missing counted as wrong."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from opd.evaluation.estimators import Estimate, clustered, majority_at_every_k, pass_at_every_k
from opd.evaluation.samples import Sample
from opd.rewards import NO_ANSWER_PREDICTIONS


class SetResult(NamedTuple):
    """The evaluation of one data set."""

    data_source: str
    num_problems: int
    num_samples: int
    """n: answers asked for per problem."""
    mean: Estimate
    """mean@n of the accuracy."""
    reward: Estimate
    """mean@n of the reward."""
    pass_at: tuple[Estimate, ...]
    """Entry k-1: pass@k."""
    majority_at: tuple[Estimate, ...]
    """Entry k-1: maj@k."""
    num_missing: int
    """Answers that were asked for and never came (failed rollouts): counted as wrong, reward 0, without a vote."""
    num_failed: int
    """Answers whose scorer failed."""
    num_unanswered: int
    """Answers in which no answer was found; the missing are not among them."""
    num_truncated: int
    mean_num_tokens: float
    """Per answer that came; NaN if none did."""
    accuracy_by_problem: Mapping[int, float]
    """For paired comparisons: the mean accuracy of each problem."""


def evaluate(
    samples: Iterable[Sample], *, num_samples: int, problems: Mapping[str, Iterable[int]] | None = None
) -> list[SetResult]:
    """The results of every data set, in the order of their names.

    Args:
        samples: in any order, of any number of data sets.
        num_samples: n, the answers each problem was asked for.
        problems: the problem indices of each data set that were asked (a set without any gives no result); a problem none of whose answers came is then
            counted as wrong. By default, those that occur in `samples`.

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
        _evaluate_set(source, by_problem[source], num_samples) for source in sorted(by_problem) if by_problem[source]
    ]


def as_metrics(results: Sequence[SetResult]) -> dict[str, float]:
    """The results under metric names in verl's manner; an undefined standard error is left out."""
    metrics: dict[str, float] = {}
    for result in results:
        n = result.num_samples
        named = {f"val-core/{result.data_source}/acc/mean@{n}": result.mean}
        named[f"val-aux/{result.data_source}/reward/mean@{n}"] = result.reward
        for k in range(1, n + 1):
            named[f"val-aux/{result.data_source}/acc/pass@{k}"] = result.pass_at[k - 1]
            named[f"val-aux/{result.data_source}/acc/maj@{k}"] = result.majority_at[k - 1]
        for name, estimate in named.items():
            metrics[name] = estimate.value
            if not np.isnan(estimate.standard_error):
                metrics[f"{name}/stderr"] = estimate.standard_error
        for count in ("num_missing", "num_failed", "num_unanswered", "num_truncated"):
            metrics[f"val-aux/{result.data_source}/{count}"] = float(getattr(result, count))
    return metrics


def _check_answers(source: str, index: int, answers: Sequence[Sample], num_samples: int) -> None:
    counts = Counter(sample.sample_index for sample in answers)
    for sample_index, count in counts.items():
        if count > 1:
            raise ValueError(f"{source} problem {index}: sample {sample_index} occurs {count} times")
        if not 0 <= sample_index < num_samples:
            raise ValueError(f"{source} problem {index}: sample {sample_index} was not asked for (n = {num_samples})")


def _evaluate_set(source: str, by_index: Mapping[int, Sequence[Sample]], num_samples: int) -> SetResult:
    indices = sorted(by_index)
    answers = [by_index[index] for index in indices]
    came = [sample for group in answers for sample in group]
    means = [sum(sample.acc for sample in group) / num_samples for group in answers]
    passes = np.stack([pass_at_every_k(sum(_is_right(sample) for sample in group), num_samples) for group in answers])
    majorities = np.stack([_majority(group, num_samples) for group in answers])
    return SetResult(
        data_source=source,
        num_problems=len(indices),
        num_samples=num_samples,
        mean=clustered(means),
        reward=clustered([sum(sample.score for sample in group) / num_samples for group in answers]),
        pass_at=tuple(clustered(column) for column in passes.T),
        majority_at=tuple(clustered(column) for column in majorities.T),
        num_missing=len(indices) * num_samples - len(came),
        num_failed=sum(sample.failed for sample in came),
        num_unanswered=sum(sample.pred in NO_ANSWER_PREDICTIONS for sample in came),
        num_truncated=sum(sample.truncated for sample in came),
        mean_num_tokens=sum(sample.num_tokens for sample in came) / len(came) if came else float("nan"),
        accuracy_by_problem=dict(zip(indices, means, strict=True)),
    )


def _is_right(sample: Sample) -> bool:
    """pass@k knows right and wrong only: partial accuracy is wrong."""
    return sample.acc == 1.0


def _majority(group: Sequence[Sample], num_samples: int) -> np.ndarray:
    """maj@k over the answers that were really extracted."""
    accuracies: defaultdict[str, list[float]] = defaultdict(list)
    for sample in group:
        if sample.pred not in NO_ANSWER_PREDICTIONS:
            accuracies[sample.pred].append(sample.acc)
    votes = [len(values) for values in accuracies.values()]
    return majority_at_every_k(votes, [sum(values) / len(values) for values in accuracies.values()], num_samples)
