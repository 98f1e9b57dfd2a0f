"""Writes the report page: gathers what the template shows, all of it escaped, under a policy that runs its own scripts only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from opd.evaluation.samples import Sample
from opd.runs.identity import describe_changes
from opd.store.base import Store
from opd.text import policy, shortened, storable
from opdctl.redact import redact
from opdctl.report import side_by_side
from opdctl.report.assets import NOTICE, SCRIPTS, STYLES, read
from opdctl.report.beside import Kept
from opdctl.report.chart_data import chart_data
from opdctl.report.problems import draw_problems
from opdctl.report.provenance import provenance
from opdctl.report.steps import StepTime, step_time, validation_rows
from opdctl.runs.compare import GENERATIONS_KEY, answers, group_runs
from opdctl.runs.compare_view import (
    ERROR_REMARK,
    MAX_SEPARATE,
    all_pairs,
    compare_groups,
    default_metrics,
    difference_text,
    estimate_text,
    interval_text,
    pairs_text,
    quantities,
)
from opdctl.runs.gather import GatheredRun
from opdctl.runs.record import RunRecord
from opdctl.runs.tables import (
    duration,
    number,
    percent,
    plain_with_error,
    progress_text,
    score_text,
    size,
    validation_lines,
    with_error,
)

MAX_TEXT_CHARS = 4000
# More runs than this share one table for their settings and one for their checkpoints, which scroll in a box.
MAX_SEPARATE_RUNS = 12
# Of the whole page; every run keeps one.
MAX_SAMPLES = 240
# Columns of generations that a reader can compare.
MAX_BESIDE = 6
# Links at the top: id of the part, what it shows, title; the last ones every page has.
PARTS = (
    ("curves", "curves", "Curves"),
    ("time", "step_times", "Step time"),
    ("validation", "validations", "Validation"),
    ("evaluation", "evaluations", "Evaluation"),
    ("differences", "comparisons", "Differences"),
    ("rollouts", "rollouts", "Rollouts"),
    ("conversations", "conversations", "Conversations"),
    ("tokens", "tokens", "Tokens"),
    ("problems", "problems", "Problems"),
    ("generations", "samples", "Generations"),
)
LAST_PARTS = (("provenance", "Provenance"), ("checkpoints", "Checkpoints"), ("experiment", "Experiment"))


def render_page(
    runs: Sequence[GatheredRun],
    stores: Mapping[str, Store],
    *,
    num_samples: int,
    kept: Kept | None = None,
) -> str:
    """The page as HTML that UTF-8 can hold, with everything inside it.

    Args:
        kept: what lies beside the page, and what it shows of that.
    """
    records = [run.record for run in runs]
    is_few = len(records) <= MAX_SEPARATE_RUNS
    kept = kept or Kept()
    groups = group_runs(records)
    comparisons = compare_groups(groups, stores, default_metrics(records)) if len(groups) > 1 else []
    curves = chart_data(runs, groups)
    scripts = tuple(map(read, SCRIPTS * bool(curves.packed)))
    evaluations = {record.run_id: sets for record in records if (sets := (record.result or {}).get("eval"))}
    shown: dict[str, Any] = {
        "curves": curves,
        **_tables(runs),
        **_texts(runs, stores, num_samples),
        "evaluations": evaluations,
        "comparisons": comparisons,
        "rollouts": kept.rollouts,
        "conversations": kept.conversations,
        "tokens": kept.tokens,
        "problems": draw_problems(runs if is_few else runs[:1], stores),
    }
    page = _environment().get_template("report.html.j2").render(
        **shown,
        policy=policy(scripts),
        scripts=scripts,
        styles="".join(map(read, STYLES if curves.packed else STYLES[-1:])),
        notice=read(NOTICE),
        title=_title(records),
        written_at=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        sources=_sources(records),
        parts=[("overview", "Runs"), *((name, title) for name, key, title in PARTS if shown[key] and (key != "curves" or curves.packed)), *LAST_PARTS],
        records=records,
        is_large=not is_few,
        has_bands=len(groups) < len(records),
        progress_text=progress_text,
        validation_lines=validation_lines,
        with_error=with_error,
        plain_with_error=plain_with_error,
        has_numbers=any(found["numbers"] for sets in evaluations.values() for found in sets.values()),
        densities=kept.densities,
        quantities=quantities(comparisons),
        error_remark=ERROR_REMARK,
        shows_each_comparison=len(comparisons) <= MAX_SEPARATE,
        provenance=provenance(runs),
        specs={record.run_id: list(leaves(record.spec)) for record in (records if is_few else records[:1])},
        settings=differing(records) if is_few else [],
        changes={record.run_id: describe_changes(records[0].spec, record.spec) for record in records[1:]},
    )  # fmt: skip
    return storable(page)


def _tables(runs: Sequence[GatheredRun]) -> dict[str, Any]:
    """What is read from each run's metrics: its step's parts, and its validations."""
    times: dict[str, StepTime] = {}
    validations = []
    for run in runs:
        table = run.metrics()
        if (found := step_time(table)) is not None:
            times[run.record.run_id] = found
        validations += validation_rows(run.record.run_id, table)
    names = dict.fromkeys(part.name for found in times.values() for part in found.parts if part.name != "rest")
    return {"step_times": times, "part_names": [*names, "rest"], "validations": validations}


def _texts(runs: Sequence[GatheredRun], stores: Mapping[str, Store], num_samples: int) -> dict[str, Any]:
    """Generations of evaluations: each run's own, and of a few runs the same problems side by side."""
    each = min(num_samples, max(MAX_SAMPLES // len(runs), 1))
    found = {run.record.run_id: answered for run in runs if (answered := _answers(run, stores, each))}
    is_beside = 1 < len(found) <= MAX_BESIDE
    return {
        "samples": {run_id: [_sample(sample) for sample in pick(answered, each)] for run_id, answered in found.items()},
        "generations": side_by_side.of_answers({name: pick(items, len(items)) for name, items in found.items()}, max_rows=each) if is_beside else None,
        "samples_left_out": each < num_samples,
    }  # fmt: skip


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("opdctl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (
        number,
        percent,
        score_text,
        size,
        duration,
        moment,
        hours,
        redact,
        pairs_text,
        all_pairs,
        difference_text,
        estimate_text,
        interval_text,
    )
    environment.filters |= {function.__name__: function for function in shown}
    return environment


def _title(records: Sequence[RunRecord]) -> str:
    """Every name of a few runs; of many their number, the first and the last."""
    names = [record.run_id for record in records]
    return ", ".join(names) if len(records) <= MAX_SEPARATE_RUNS else f"{len(names)} runs: {names[0]} … {names[-1]}"


def _sources(records: Sequence[RunRecord]) -> list[str]:
    """The runs' URLs; of many runs the stores that they lie in."""
    urls = [record.url for record in records]
    return urls if len(records) <= MAX_SEPARATE_RUNS else list(dict.fromkeys(url.rpartition("/")[0] for url in urls))


def leaves(tree: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every leaf of a spec with its dotted path, in the spec's order."""
    if isinstance(tree, Mapping) and tree:
        return [leaf for key, inner in tree.items() for leaf in leaves(inner, f"{path}.{key}" if path else str(key))]
    return [(path, tree)]


def pick(samples: Sequence[Sample], num_samples: int) -> list[Sample]:
    """Right and wrong answers in turn, spread over the problems: the first answer of each comes first."""
    ordered = sorted(samples, key=lambda sample: (sample.sample_index, sample.data_source, sample.problem_index))
    right = [sample for sample in ordered if sample.acc == 1.0]
    wrong = [sample for sample in ordered if sample.acc != 1.0]
    picked: list[Sample] = []
    while len(picked) < num_samples and (right or wrong):
        for group in (right, wrong):
            if group and len(picked) < num_samples:
                picked.append(group.pop(0))
    return picked


def differing(records: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """The settings in which runs differ, but for their names: path and each run's value."""
    trees = [{path: str(value) for path, value in leaves(record.spec)} for record in records]
    paths = sorted({path for tree in trees for path in tree} - {"name"})
    rows = [(path, [tree.get(path, "–") for tree in trees]) for path in paths]
    return [(path, values) for path, values in rows if len(set(values)) > 1]


def _answers(run: GatheredRun, stores: Mapping[str, Store], num_samples: int) -> Sequence[Sample]:
    if num_samples == 0 or GENERATIONS_KEY.partition("/")[0] not in run.folders:
        return []
    store = stores[run.record.url]
    return answers(store, run.record.run_id) if store.exists(GENERATIONS_KEY) else []


def _sample(sample: Sample) -> dict[str, Any]:
    prompt, response = (shortened(text, MAX_TEXT_CHARS) for text in (sample.prompt, sample.response))
    return {"sample": sample, "prompt": prompt, "response": response}


def moment(time_s: float) -> str:
    """`2026-11-22 18:03 UTC`; a dash for none, and for a number that is no time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_s)) if time_s else "–"
    except (OverflowError, ValueError, OSError):
        return "–"


def hours(value: float) -> str:
    """`12.5`, more digits below one."""
    return f"{value:.3g}" if 0 < value < 1 else f"{value:.1f}" if value else "–"
