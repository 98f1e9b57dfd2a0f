"""Comparison of runs: groups over seeds, values with standard errors, and differences paired by problem or seed.

Each difference names its pairs: problems (each one's value in both groups, a mean over seeds) or seeds (one value a run).
Without pairs there is no standard error; steps are not independent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from opd.evaluation.estimators import Estimate, clustered, pass_at_every_k
from opd.experiment.kinds import NOT_IDENTITY
from opd.runs.headline import ACCURACY_KEYS, LOSS_KEYS, SCORE_KEYS
from opd.runs.identity import describe_changes
from opd.store.base import Store
from opdctl.console import note, usage_error
from opdctl.runs.gather import GENERATIONS_KEY, LoadedRun
from opdctl.runs.record import RunRecord, is_validation
from opdctl.tables import NONE, Sheet, with_error

if TYPE_CHECKING:
    from opd.evaluation.results import SetResult
    from opd.evaluation.samples import Sample

    Evaluated = Mapping[str, SetResult]
    """One run's evaluation by data set."""

ERROR_REMARK = "value ± standard error; 95 % interval by Student's t, * where it leaves out 0; – without an error"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one length that differ in their seed only, and in keys that are not part of a run's identity."""

    name: str
    records: tuple[RunRecord, ...]

    def by_seed(self, metric: str) -> dict[str, float]:
        """Return the metric's last value by the run's seed, for the runs that logged it."""
        return {str(item.spec.get("seed")): item.latest[metric] for item in self.records if metric in item.latest}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The change of one quantity, `after - before`, over `num_pairs` problems or seeds.

    Attributes:
        paired_by: `problem`, `seed`, or empty without pairs.
    """

    quantity: str
    before: Estimate
    after: Estimate
    difference: Estimate
    num_pairs: int
    paired_by: str
    remark: str = ""

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends of the difference's 95 % interval by Student's t; NaN where there is no error."""
        return self.difference.interval(self.num_pairs - 1)

    @property
    def is_notable(self) -> bool:
        """True where the interval leaves out 0."""
        return self.interval[0] > 0 or self.interval[1] < 0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One group of runs against the first: the spec's keys that differ, one line each, and the differences in results."""

    before: str
    after: str
    changes: list[str]
    differences: list[Difference]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return each difference as plain values."""
        same = ("quantity", "is_notable", "num_pairs", "paired_by", "remark")
        return [
            {
                "base": self.before, "group": self.after, "before": one.before.value, "after": one.after.value,
                "difference": one.difference.value, "standard_error": one.difference.standard_error,
                "low": one.interval[0], "high": one.interval[1], **{name: getattr(one, name) for name in same},
            }
            for one in self.differences
        ]  # fmt: skip


def compare_runs(runs: Sequence[LoadedRun], base: str | None, metrics: Sequence[str]) -> list[Comparison]:
    """Compare each group of runs with the base: the group of the named run, else the best group that has finished."""
    records = [run.record for run in runs]
    groups = best_first(group_runs(records), base) if records else []
    if len(groups) < 2:
        fix = "opdctl compare BASE OTHER --store URL; opdctl.band(runs, METRIC) averages the seeds of one spec"
        raise usage_error(f"compare needs runs of two specs or more, and here is {len(groups)}", fix=fix)
    stores = {run.record.url: run.listing.store for run in runs}
    return compare_groups(groups, stores, metrics or default_metrics(records))


def group_runs(records: Sequence[RunRecord]) -> list[Group]:
    """Group runs over seeds, in the order of their first run.

    Two runs of one seed are no pair: then every run is its own group.
    """
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(repr(_without_seed(record.spec)) if record.spec else record.run_id, []).append(record)
    out = []
    for members in groups.values():
        if len({str(member.spec.get("seed")) for member in members}) < len(members):
            out += [Group(name=member.run_id, records=(member,)) for member in members]
        else:
            more = f" (+{len(members) - 1} seeds)" if len(members) > 1 else ""
            out.append(Group(name=members[0].run_id + more, records=tuple(members)))
    return out


def best_first(groups: Sequence[Group], base: str | None) -> list[Group]:
    """Return the groups with the base first: the group of the named run, else the best finished group.

    The best has the highest mean validation accuracy over its finished runs, then the highest training score.
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


def default_metrics(records: Sequence[RunRecord]) -> list[str]:
    """Return loss, accuracy, score and every validation's core metric, as far as any run logged them."""
    logged = {name for record in records for name in record.latest}
    core = sorted(filter(is_validation, logged))
    return [name for name in (*LOSS_KEYS, *ACCURACY_KEYS, *SCORE_KEYS) if name in logged] + core


def compare_groups(groups: Sequence[Group], stores: Mapping[str, Store], metrics: Sequence[str]) -> list[Comparison]:
    """Compare each group with the first: evaluations paired by problem, then metrics paired by seed."""
    base, records = groups[0], [record for group in groups for record in group.records]
    for metric in metrics:
        if not any(metric in record.latest for record in records):
            known = ", ".join(sorted(base.records[0].latest)[:12]) or "none"
            raise usage_error(f"metric {metric!r} was logged by none of the runs", fix=f"they logged: {known}, ...")
    evaluations = {record.url: evaluated(stores[record.url], record) for record in records}
    out = []
    for other in groups[1:]:
        changes = describe_changes(_without_seed(base.records[0].spec), _without_seed(other.records[0].spec))
        found = compare_evaluations(*([evaluations[one.url] for one in group.records] for group in (base, other)))
        found += [item for metric in metrics if (item := compare_metric(metric, base, other)) is not None]
        out.append(Comparison(before=base.name, after=other.name, changes=changes, differences=found))
    return out


def compare_metric(metric: str, before: Group, after: Group) -> Difference | None:
    """Compare the last values of a metric, paired by seed; return None if one side never logged it."""
    old, new = before.by_seed(metric), after.by_seed(metric)
    if not old or not new:
        return None
    means = clustered(list(old.values())), clustered(list(new.values()))
    shared, left_out = old.keys() & new.keys(), len(old.keys() ^ new.keys())
    if len(shared) > 1:
        difference, paired_by = clustered([new[seed] - old[seed] for seed in sorted(shared)]), "seed"
    else:
        difference, paired_by, left_out = Estimate(means[1].value - means[0].value, math.nan), "", 0
    return Difference(
        quantity=metric, before=means[0], after=means[1], difference=difference, num_pairs=len(shared),
        paired_by=paired_by, remark=f"{left_out} seeds on one side only" if left_out else "",
    )  # fmt: skip


def compare_evaluations(before: Sequence["Evaluated"], after: Sequence["Evaluated"]) -> list[Difference]:
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
        values = [("mean@n", [[item.accuracy_by_problem for item in side] for side in (old, new)])]
        if k > 1:
            values.append((f"pass@{k}", [[_pass_at(item, k) for item in side] for side in (old, new)]))
        for name, (left, right) in values:
            found = _paired_by_problem(f"{source} {name}", left, right)
            out += [found] if found else []
    return out


def _pass_at(result: "SetResult", k: int) -> Mapping[int, float]:
    num = result.num_samples
    return {index: float(pass_at_every_k(right, num)[k - 1]) for index, right in result.num_right_by_problem.items()}


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
        quantity=quantity, before=clustered(list(before.values())), after=clustered(list(after.values())),
        difference=clustered([after[index] - before[index] for index in shared]), num_pairs=len(shared),
        paired_by="problem", remark="; ".join(remarks),
    )  # fmt: skip


def evaluated(store: Store, record: RunRecord) -> "Evaluated":
    """Return the results by data set, from the generations that an evaluation stored; empty without any."""
    if not record.evaluation or not store.exists(GENERATIONS_KEY):
        return {}
    from opd.evaluation.results import evaluate

    samples = answers(store, record.run_id)
    found: dict[str, SetResult] = {}
    for source, result in record.evaluation.items():
        of_source = [sample for sample in samples if sample.data_source == source]
        try:
            found |= {source: evaluate(of_source, num_samples=result["num_samples"])[0]} if of_source else {}
        except ValueError as error:
            note(f"warning: {record.run_id}: the answers of {source} are left out: {error}")
    return found


def answers(store: Store, run_id: str) -> "Sequence[Sample]":
    """Return the generations that an evaluation stored; an unreadable file is noted and gives none."""
    from opd.evaluation.samples import read_generations

    try:
        return read_generations(store.get(GENERATIONS_KEY))
    except (pa.ArrowException, ValueError, TypeError, OSError) as error:
        note(f"warning: {run_id}: {GENERATIONS_KEY} is left out: {error}")
        return []


def _without_seed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec's values by dotted path, without its seed and the keys of NOT_IDENTITY, but with its length."""
    hidden = {"seed", *NOT_IDENTITY} - {"trainer.total_epochs", "trainer.total_steps"}
    return {path: value for path, value in leaves(spec) if not any(f"{path}.".startswith(f"{one}.") for one in hidden)}


def leaves(tree: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return every leaf of a spec with its dotted path, in the spec's order."""
    if isinstance(tree, Mapping) and tree:
        return [leaf for key, inner in tree.items() for leaf in leaves(inner, f"{path}.{key}" if path else str(key))]
    return [(path, tree)]


def comparison_sheets(found: Sequence[Comparison]) -> list[Sheet]:
    """Return the keys in which groups differ from the base, and one row a group and quantity; a star is notable."""
    changes = [(item.after, "\n".join(item.changes) or "(the specs are equal)") for item in found]
    lines = [
        (item.after, one.quantity, with_error(*one.before), with_error(*one.after),
         with_error(*one.difference, sign="+") + " *" * one.is_notable,
         NONE if math.isnan(one.interval[0]) else "{:+.4g} … {:+.4g}".format(*one.interval),
         f"{one.num_pairs} by {one.paired_by}" if one.paired_by else "not paired", one.remark)
        for item in found
        for one in item.differences
    ]  # fmt: skip
    names = ("group", "quantity", "base", "group's", "difference", "95 %", "pairs", "remark")
    return [
        Sheet(names=("group", "what differs"), lines=changes, title=f"base {found[0].before}"),
        Sheet(names=names, lines=lines, caption=ERROR_REMARK),
    ]
