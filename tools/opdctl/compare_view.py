"""Owns how a comparison is shown: the runs, then for each other group what differs and the paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from opd.evaluation.estimators import Estimate
from opd.runs.store import Store
from opdctl.comparing import (
    Difference,
    Group,
    compare_evaluations,
    compare_metric,
    group_runs,
    problem_accuracies,
    spec_changes,
)
from opdctl.errors import usage_error
from opdctl.records import ACCURACY_KEYS, LOSS_KEYS, VALIDATION_PREFIX, RunRecord
from opdctl.tables import runs_table

# An absolute difference beyond this many standard errors is pointed out; 1.96 is the two-sided 5 % level.
Z_NOTABLE = 1.96


def print_comparison(
    records: Sequence[RunRecord], stores: Mapping[str, Store], *, metrics: Sequence[str], console: Console
) -> None:
    """Prints every run, and each group of runs against the first one."""
    console.print(runs_table(records))
    groups = group_runs(records)
    if len(groups) == 1:
        console.print(f"all runs are one experiment under {len(records)} seeds:")
        console.print(_seeds_table(groups[0], metrics or default_metrics(records)))
        return
    for other in groups[1:]:
        changes = spec_changes(groups[0], other)
        console.print(f"\n{groups[0].name} -> {other.name}", style="bold")
        for line in changes or ["(the specs say the same)"]:
            console.print(f"  {line}", markup=False)
        console.print(differences_table(differences(groups[0], other, stores, metrics or default_metrics(records))))


def differences(before: Group, after: Group, stores: Mapping[str, Store], metrics: Sequence[str]) -> list[Difference]:
    """Evaluations paired by problem (of each group's first run), then metrics, paired by seed where there are several.

    Raises:
        ToolError: a metric that neither side logged.
    """
    old, new = before.records[0], after.records[0]
    found = compare_evaluations(problem_accuracies(stores[old.url], old), problem_accuracies(stores[new.url], new))
    for metric in metrics:
        difference = compare_metric(metric, before, after)
        if difference is not None:
            found.append(difference)
        elif not any(metric in record.latest for record in (*before.records, *after.records)):
            known = ", ".join(sorted(old.latest)[:12]) or "none"
            raise usage_error(f"metric {metric!r} was logged by none of the runs", fix=f"they logged: {known}, ...")
    return found


def default_metrics(records: Sequence[RunRecord]) -> list[str]:
    """Loss, accuracy, and every validation's core metric, as far as any run logged them."""
    logged = {name for record in records for name in record.latest}
    core = sorted(name for name in logged if name.startswith(VALIDATION_PREFIX) and not name.endswith("stderr"))
    return [name for name in (*LOSS_KEYS, *ACCURACY_KEYS) if name in logged] + core


def differences_table(found: Sequence[Difference]) -> Table:
    """One row a quantity; a star marks a difference beyond 1.96 standard errors."""
    table = Table("quantity", "base", "other", "difference", "pairs", "remark",
                  caption="value ± standard error; * beyond 1.96 standard errors; – no error can be given")  # fmt: skip
    for item in found:
        error = item.difference.standard_error
        is_notable = not math.isnan(error) and abs(item.difference.value) > Z_NOTABLE * error
        pairs = f"{item.num_pairs} by {item.paired_by}" if item.paired_by else "not paired"
        table.add_row(
            item.quantity,
            estimate_text(item.before),
            estimate_text(item.after),
            f"{estimate_text(item.difference, sign='+')}{' *' if is_notable else ''}",
            pairs,
            item.remark,
        )
    return table


def estimate_text(estimate: Estimate, *, sign: str = "") -> str:
    error = "–" if math.isnan(estimate.standard_error) else f"{estimate.standard_error:.2g}"
    return f"{estimate.value:{sign}.4g} ± {error}"


def _seeds_table(group: Group, metrics: Sequence[str]) -> Table:
    from opd.evaluation.estimators import clustered

    table = Table("quantity", "mean over seeds", "seeds")
    for metric in metrics:
        values = group.by_seed(metric)
        if values:
            table.add_row(metric, estimate_text(clustered(list(values.values()))), str(len(values)))
    return table
