"""The table of an evaluation's results for the terminal."""

import math
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from opd.evaluation.estimators import Estimate
from opd.evaluation.results import SetResult, shown_ks


def result_table(results: Sequence[SetResult]) -> Table:
    """A column for each data set: accuracies in percent with their standard errors, and what did not go well."""
    ks = [k for k in shown_ks(max(result.num_samples for result in results)) if k > 1]
    table = Table("", title="Evaluation", caption="percent ± standard error, clustered by problem")
    for result in results:
        table.add_column(escape(result.data_source), justify="right")
    table.add_row("problems × answers", *(f"{result.num_problems} × {result.num_samples}" for result in results))
    table.add_row("mean@n", *(percent(result.mean) for result in results))
    if any(result.num_dropped for result in results):
        table.add_row("not asked: prompt too long", *(str(result.num_dropped) for result in results))
        table.add_row("mean@n, those as wrong", *(percent(result.mean_of_all) for result in results))
    if ks:
        table.add_row("std@n", *(percent(result.accuracy.std) for result in results))
    at_k: dict[str, list[tuple[Estimate, ...]]] = {
        "pass": [result.pass_at for result in results],
        "maj": [result.majority_at for result in results],
    }
    for name, columns in at_k.items():
        for k in ks:
            table.add_row(f"{name}@{k}", *(percent(values[k - 1]) if k <= len(values) else "–" for values in columns))
    if any(result.reward.mean != result.accuracy.mean for result in results):
        table.add_row("reward mean@n", *(plain(result.reward.mean) for result in results))
    for name in sorted({name for result in results for name in result.numbers}):
        table.add_row(escape(f"{name} mean@n"), *(_number(result, name) for result in results))
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


def percent(estimate: Estimate) -> str:
    """`43.3 ± 7.1`, or the value alone where no error can be given."""
    if math.isnan(estimate.standard_error):
        return f"{100 * estimate.value:.1f}"
    return f"{100 * estimate.value:.1f} ± {100 * estimate.standard_error:.1f}"


def plain(estimate: Estimate) -> str:
    """`0.433 ± 0.071`, or the value alone where no error can be given: for rewards, which need not be shares."""
    error = "" if math.isnan(estimate.standard_error) else f" ± {estimate.standard_error:.3f}"
    return f"{estimate.value:.3f}{error}"


def _number(result: SetResult, name: str) -> str:
    """The mean of a further number, with the answers that it rests on where not all have it."""
    if name not in result.numbers:
        return "–"
    mean, num_answers = result.numbers[name]
    num_asked = result.num_problems * result.num_samples
    return plain(mean) + (f" ({num_answers} of {num_asked})" if num_answers < num_asked else "")
