"""Comparison of runs: groups over seeds, values with standard errors, and differences paired by problem or seed.

Each difference names its pairs: problems (each one's value in both groups, a mean over seeds) or seeds (one value a run).
Without pairs there is no standard error; steps are not independent.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from opd.config.canonical import NOT_IDENTITY
from opd.evaluation.estimators import Estimate, chance_beyond, clustered, paired_difference, pass_at_every_k
from opd.runs.identity import describe_changes
from opd.store.base import Store
from opdctl.console import note
from opdctl.errors import usage_error
from opdctl.runs.record import RunRecord

if TYPE_CHECKING:
    from opd.evaluation.results import SetResult
    from opd.evaluation.samples import Sample

    Evaluated = Mapping[str, SetResult]
    """One run's evaluation by data set."""

LEVEL = 0.05
GENERATIONS_KEY = "eval/generations.parquet"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ in their seed only, and in keys that are not part of a run's identity."""

    name: str
    records: tuple[RunRecord, ...]

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return the metric's last value by the run's seed, for the runs that logged it."""
        return {
            int(record.spec.get("seed", 0)): record.latest[metric] for record in self.records if metric in record.latest
        }


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The change of one quantity, `after - before`, over `num_pairs` problems or seeds."""

    quantity: str
    before: Estimate
    after: Estimate
    difference: Estimate
    num_pairs: int
    paired_by: str
    """`problem`, `seed`, or empty without pairs."""
    freedom: int
    """Degrees of freedom of the difference's standard error; 0 where there is no error."""
    remark: str = ""

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends of the difference's 95 % interval by Student's t; NaN where there is no error."""
        return self.difference.interval(self.freedom)

    @property
    def is_notable(self) -> bool:
        """True where Student's t finds it at the two-sided 5 % level; a difference of 0 is never notable."""
        error = self.difference.standard_error
        if self.freedom < 1 or math.isnan(error) or self.difference.value == 0:
            return False
        return chance_beyond(abs(self.difference.value) / error if error else math.inf, self.freedom) < LEVEL


def group_runs(records: Sequence[RunRecord]) -> list[Group]:
    """Group runs over seeds, in the order of their first run.

    Two runs of one seed are no pair: then every run is its own group.
    """
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(repr(_without_seed(record.spec)) if record.spec else record.run_id, []).append(record)
    out = []
    for members in groups.values():
        seeds = [member.spec.get("seed") for member in members]
        if len(set(seeds)) < len(members):
            out += [Group(name=member.run_id, records=(member,)) for member in members]
        else:
            more = f" (+{len(members) - 1} seeds)" if len(members) > 1 else ""
            out.append(Group(name=members[0].run_id + more, records=tuple(members)))
    return out


def spec_changes(before: Group, after: Group) -> list[str]:
    """Return one line for each key of the specs that differs, names and places left out."""
    return describe_changes(_without_seed(before.records[0].spec), _without_seed(after.records[0].spec))


def compare_metric(metric: str, before: Group, after: Group) -> Difference | None:
    """Compare the last values of a metric, paired by seed; return None if one side never logged it."""
    old, new = before.by_seed(metric), after.by_seed(metric)
    if not old or not new:
        return None
    shared = sorted(old.keys() & new.keys())
    if shared and len(shared) > 1:
        pairs = ({seed: old[seed] for seed in shared}, {seed: new[seed] for seed in shared})
        difference, paired_by, freedom = paired_difference(*pairs), "seed", len(shared) - 1
    else:
        mean_old, mean_new = clustered(list(old.values())), clustered(list(new.values()))
        error = (mean_old.standard_error**2 + mean_new.standard_error**2) ** 0.5
        difference, paired_by = Estimate(mean_new.value - mean_old.value, error), ""
        freedom = _welch(mean_old.standard_error, len(old), mean_new.standard_error, len(new))
    left_out = len(old.keys() ^ new.keys())
    return Difference(
        quantity=metric,
        before=clustered(list(old.values())),
        after=clustered(list(new.values())),
        difference=difference,
        num_pairs=len(shared),
        paired_by=paired_by,
        freedom=freedom,
        remark=f"{left_out} seeds on one side only" if left_out and paired_by else "",
    )


def best_first(groups: Sequence[Group], base: str | None) -> list[Group]:
    """Return the groups with the base first: the group of the named run, else the best finished group.

    The best has the highest mean validation accuracy over its finished runs, then the highest training score.

    Raises:
        ToolError: no such run.
    """
    if base is None:
        chosen = max(groups, key=_score_of_finished)
    else:
        found = [group for group in groups if any(record.run_id == base for record in group.records)]
        if not found:
            known = ", ".join(record.run_id for group in groups for record in group.records)
            raise usage_error(f"base {base!r} is not among the runs", fix=f"name one of: {known}")
        chosen = found[0]
    return [chosen, *(group for group in groups if group is not chosen)]


def _score_of_finished(group: Group) -> tuple[bool, float]:
    done = [record for record in group.records if record.state == "succeeded"]
    training = [record.training_score.value for record in done if record.training_score is not None]
    scores = [value for record in done if (value := record.validation_accuracy) is not None] or training
    return bool(done), sum(scores) / len(scores) if scores else -math.inf


def compare_evaluations(before: Sequence[Evaluated], after: Sequence[Evaluated]) -> list[Difference]:
    """Compare mean@n and pass@k of each data set that both groups answered, paired by problem.

    A problem's value is its mean over the group's runs (its seeds); k is the most answers that every run has.

    Args:
        before: the evaluation of each run of a group.
        after: the evaluation of each run of the other group.
    """
    out = []
    for source in sorted({name for run in before for name in run} & {name for run in after for name in run}):
        old = [run[source] for run in before if source in run]
        new = [run[source] for run in after if source in run]
        k = min(result.num_samples for result in (*old, *new))
        kinds: dict[str, Callable[[SetResult], Mapping[int, float]]] = {"mean@n": lambda item: item.accuracy_by_problem}
        if k > 1:
            kinds[f"pass@{k}"] = lambda item, k=k: _pass_at(item, k)  # type: ignore[misc]
        for name, values in kinds.items():
            found = _paired_by_problem(
                f"{source} {name}", [values(item) for item in old], [values(item) for item in new]
            )
            out += [found] if found else []
    return out


def _pass_at(result: SetResult, k: int) -> dict[int, float]:
    return {
        index: float(pass_at_every_k(num_right, result.num_samples)[k - 1])
        for index, num_right in result.num_right_by_problem.items()
    }


def _paired_by_problem(
    quantity: str, old: Sequence[Mapping[int, float]], new: Sequence[Mapping[int, float]]
) -> Difference | None:
    """Compare values by problem; return None without a problem that every run answered."""
    asked = [set(values) for values in (*old, *new)]
    shared = sorted(set.intersection(*asked))
    if not shared:
        return None
    before, after = ({index: fmean(values[index] for values in runs) for index in shared} for runs in (old, new))
    left_out = len(set.union(*asked)) - len(shared)
    remarks = [f"mean of {len(old)} and {len(new)} seeds"] if len(old) + len(new) > 2 else []
    remarks += [f"{left_out} problems not answered by every run are left out"] if left_out else []
    return Difference(
        quantity=quantity,
        before=clustered(list(before.values())),
        after=clustered(list(after.values())),
        difference=paired_difference(before, after),
        num_pairs=len(shared),
        paired_by="problem",
        freedom=len(shared) - 1,
        remark="; ".join(remarks),
    )


def _welch(error_a: float, num_a: int, error_b: float, num_b: int) -> int:
    """Return Welch's and Satterthwaite's degrees of freedom of a difference between two means, rounded down."""
    if num_a < 2 or num_b < 2:
        return 0
    shares = error_a**4 / (num_a - 1) + error_b**4 / (num_b - 1)
    return int((error_a**2 + error_b**2) ** 2 / shares) if shares else min(num_a, num_b) - 1


def evaluations_of(stores: Mapping[str, Store]) -> Callable[[RunRecord], Evaluated]:
    """Return a function that gives a record's evaluation and downloads each run's generations once."""
    found: dict[str, Evaluated] = {}

    def ask(record: RunRecord) -> Evaluated:
        if record.url not in found:
            found[record.url] = evaluated(stores[record.url], record)
        return found[record.url]

    return ask


def evaluated(store: Store, record: RunRecord) -> Evaluated:
    """Return the results by data set, from the generations that an evaluation stored; empty without any."""
    sets = (record.result or {}).get("eval")
    if not isinstance(sets, dict) or not store.exists(GENERATIONS_KEY):
        return {}
    from opd.evaluation.results import evaluate

    samples = answers(store, record.run_id)
    found: dict[str, SetResult] = {}
    for source, result in sets.items():
        of_source = [sample for sample in samples if sample.data_source == source]
        if not of_source:
            continue
        try:
            [found[source]] = evaluate(of_source, num_samples=int(result["num_samples"]))
        except ValueError as error:
            note(f"warning: {record.run_id}: the answers of {source} are left out: {error}")
    return found


def answers(store: Store, run_id: str) -> Sequence[Sample]:
    """Return the generations that an evaluation stored; an unreadable file is noted and gives none."""
    from opd.evaluation.samples import read_generations

    with tempfile.TemporaryDirectory(prefix="opdctl-") as folder:
        path = Path(folder) / "generations.parquet"
        store.get_file(GENERATIONS_KEY, path)
        try:
            return read_generations(path)
        except (pa.ArrowException, ValueError, TypeError, OSError) as error:
            note(f"warning: {run_id}: {GENERATIONS_KEY} is left out: {error}")
            return []


def _without_seed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec without its seed and the keys of NOT_IDENTITY."""
    tree: dict[str, Any] = _copy(spec)
    for path in (*NOT_IDENTITY, "seed"):
        *parents, last = path.split(".")
        node: Any = tree
        for key in parents:
            node = node.get(key, {}) if isinstance(node, dict) else {}
        if isinstance(node, dict):
            node.pop(last, None)
    return tree


def _copy(value: Any) -> Any:
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value
