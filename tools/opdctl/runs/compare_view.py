"""Tables of a comparison: the runs, then for each other group the changed keys and the paired differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from opd.evaluation.estimators import Estimate, clustered
from opd.runs.headline import ACCURACY_KEYS, LOSS_KEYS, SCORE_KEYS
from opd.store.base import Store
from opdctl.errors import usage_error
from opdctl.runs.compare import (
    Difference,
    Group,
    best_first,
    compare_evaluations,
    compare_metric,
    evaluations_of,
    group_runs,
    spec_changes,
)
from opdctl.runs.record import RunRecord, is_validation
from opdctl.runs.tables import Sheet, runs_table, show

if TYPE_CHECKING:
    from opdctl.runs.compare import Evaluated

ERROR_REMARK = "value ± standard error; 95 % interval by Student's t, * where it leaves out 0; – without an error"
# More groups than this go into one table, a row each.
MAX_SEPARATE = 5


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One group of runs against the first: the spec's keys that differ, one line each, and the differences in results."""

    before: str
    after: str
    changes: list[str]
    differences: list[Difference]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return each difference as plain values."""
        return [
            {
                "base": self.before, "group": self.after, "quantity": one.quantity, "before": one.before.value,
                "after": one.after.value, "difference": one.difference.value, "standard_error": one.difference.standard_error,
                "low": one.interval[0], "high": one.interval[1], "is_notable": one.is_notable, "num_pairs": one.num_pairs,
                "paired_by": one.paired_by, "remark": one.remark,
            }
            for one in self.differences
        ]  # fmt: skip


def print_comparison(
    records: Sequence[RunRecord],
    stores: Mapping[str, Store],
    *,
    metrics: Sequence[str],
    base: str | None = None,
) -> None:
    """Print every run, and each group of runs against the base; many groups share one table.

    Args:
        base: run id of the base; the best finished run by default.
    """
    show(runs_table(records))
    groups = best_first(group_runs(records), base)
    metrics = metrics or default_metrics(records)
    if len(groups) == 1:
        show(Text(f"all runs are one experiment under {len(records)} seeds:"), _seeds_table(groups[0], metrics))
        return
    found = compare_groups(groups, stores, metrics)
    if len(found) > MAX_SEPARATE:
        show(overview_table(found))
        return
    for item in found:
        show(Text(f"\n{item.before} -> {item.after}", style="bold"))
        show(*(Text(f"  {line}") for line in item.changes or ["(the specs are equal)"]))
        show(differences_table(item.differences))


def compare_groups(groups: Sequence[Group], stores: Mapping[str, Store], metrics: Sequence[str]) -> list[Comparison]:
    """Compare each group with the first.

    Raises:
        ToolError: a metric that none of the runs logged.
    """
    base, evaluations = groups[0], evaluations_of(stores)
    records = [record for group in groups for record in group.records]
    for metric in metrics:
        if not any(metric in record.latest for record in records):
            known = ", ".join(sorted(base.records[0].latest)[:12]) or "none"
            raise usage_error(f"metric {metric!r} was logged by none of the runs", fix=f"they logged: {known}, ...")
    return [
        Comparison(
            before=base.name,
            after=other.name,
            changes=spec_changes(base, other),
            differences=_differences(base, other, evaluations, metrics),
        )
        for other in groups[1:]
    ]


def _differences(
    before: Group, after: Group, evaluations: Callable[[RunRecord], Evaluated], metrics: Sequence[str]
) -> list[Difference]:
    """Compare evaluations, paired by problem, then metrics, paired by seed where there are several."""
    found = compare_evaluations(*([evaluations(record) for record in group.records] for group in (before, after)))
    for metric in metrics:
        difference = compare_metric(metric, before, after)
        if difference is not None:
            found.append(difference)
    return found


def default_metrics(records: Sequence[RunRecord]) -> list[str]:
    """Return loss, accuracy, score and every validation's core metric, as far as any run logged them."""
    logged = {name for record in records for name in record.latest}
    core = sorted(filter(is_validation, logged))
    return [name for name in (*LOSS_KEYS, *ACCURACY_KEYS, *SCORE_KEYS) if name in logged] + core


def differences_table(found: Sequence[Difference]) -> Sheet:
    """Return one row a quantity; a star marks a notable difference."""
    names = ("quantity", "base", "other", "difference", "95 %", "pairs", "remark")
    lines = [
        (
            item.quantity,
            estimate_text(item.before),
            estimate_text(item.after),
            difference_text(item),
            interval_text(item.interval, sign="+"),
            pairs_text(item),
            item.remark,
        )
        for item in found
    ]
    return Sheet(names=names, lines=lines, caption=ERROR_REMARK)


def overview_table(found: Sequence[Comparison]) -> Sheet:
    """Return one row a group, one column a quantity: its difference to the first group."""
    names = quantities(found)
    lines = []
    for item in found:
        by_name = {difference.quantity: difference_text(difference) for difference in item.differences}
        shown = (by_name.get(name, "–") for name in names)
        lines.append((item.after, "\n".join(item.changes), *shown, "\n".join(all_pairs(item))))
    title = f"differences to {found[0].before}"
    return Sheet(names=("group", "what differs", *names, "pairs"), lines=lines, title=title, caption=ERROR_REMARK)


def all_pairs(item: Comparison) -> list[str]:
    """Return the kinds of pairs of the group's differences, each once."""
    return list(dict.fromkeys(map(pairs_text, item.differences)))


def quantities(found: Sequence[Comparison]) -> list[str]:
    """Return every quantity of the comparisons, in their order."""
    return list(dict.fromkeys(difference.quantity for item in found for difference in item.differences))


def difference_text(item: Difference) -> str:
    """Return `+0.12 ± 0.03 *`; the star means notable."""
    return f"{estimate_text(item.difference, sign='+')}{' *' if item.is_notable else ''}"


def pairs_text(item: Difference) -> str:
    """Return `4 by problem`."""
    return f"{item.num_pairs} by {item.paired_by}" if item.paired_by else "not paired"


def estimate_text(estimate: Estimate, *, sign: str = "") -> str:
    """Return `0.12 ± 0.03`, with a dash for no error."""
    error = "–" if math.isnan(estimate.standard_error) else f"{estimate.standard_error:.2g}"
    return f"{estimate.value:{sign}.4g} ± {error}"


def interval_text(interval: tuple[float, float], *, sign: str = "") -> str:
    """Return `0.1 … 0.3`; a dash for none."""
    low, high = interval
    return "–" if math.isnan(low) else f"{low:{sign}.4g} … {high:{sign}.4g}"


def _seeds_table(group: Group, metrics: Sequence[str]) -> Sheet:
    lines = []
    for metric in metrics:
        values = list(group.by_seed(metric).values())
        if values:
            mean = clustered(values)
            interval = interval_text(mean.interval(len(values) - 1))
            lines.append((metric, estimate_text(mean), interval, str(len(values))))
    names = ("quantity", "mean over seeds", "95 %", "seeds")
    return Sheet(names=names, lines=lines, caption=ERROR_REMARK.partition(",")[0])
