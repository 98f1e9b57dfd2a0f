"""Writes the report page: gathers what the template shows, all of it escaped, under a policy that runs no script."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from opd.evaluation.samples import Sample
from opd.runs.identity import describe_changes
from opd.store.base import Store
from opd.text import shortened
from opdctl.redact import redact
from opdctl.report.curves import draw_all
from opdctl.runs.compare import GENERATIONS_KEY, answers, group_runs
from opdctl.runs.compare_view import (
    MAX_SEPARATE,
    Comparison,
    all_pairs,
    compare_groups,
    default_metrics,
    difference_text,
    estimate_text,
    pairs_text,
    quantities,
)
from opdctl.runs.gather import GatheredRun
from opdctl.runs.records import RunRecord
from opdctl.runs.tables import ago, number, percent, progress_text, size, validation_lines, with_error

MAX_TEXT_CHARS = 4000
# More runs than this share one table for their settings and one for their checkpoints, which scroll in a box.
MAX_SEPARATE_RUNS = 12
# Of the whole page; every run keeps one.
MAX_SAMPLES = 240


def render_page(
    runs: Sequence[GatheredRun],
    stores: Mapping[str, Store],
    *,
    num_samples: int,
    conversations: Mapping[str, str] | None = None,
) -> str:
    """The page as HTML, with everything inside it; `conversations` are links to other pages, by run id."""
    records = [run.record for run in runs]
    base = records[0]
    samples_each = min(num_samples, max(MAX_SAMPLES // len(runs), 1))
    comparisons = _comparisons(records, stores)
    shown_whole = records if _is_few(records) else records[:1]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=_title(records),
            written_at=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            sources=_sources(records),
            records=records,
            is_large=not _is_few(records),
            progress_text=progress_text,
            validation_lines=validation_lines,
            with_error=with_error,
            conversations=dict(conversations or {}),
            curves=draw_all(((run.record.run_id, run.metrics()) for run in runs), num_runs=len(runs)),
            evaluations={record.run_id: sets for record in records if (sets := (record.result or {}).get("eval"))},
            comparisons=comparisons,
            quantities=quantities(comparisons),
            shows_each_comparison=len(comparisons) <= MAX_SEPARATE,
            specs={record.run_id: list(leaves(record.spec)) for record in shown_whole},
            changes={record.run_id: describe_changes(base.spec, record.spec) for record in records[1:]},
            samples={run.record.run_id: shown for run in runs if (shown := _samples(run, stores, samples_each))},
            samples_left_out=samples_each < num_samples,
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("opdctl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (number, percent, size, ago, redact, pairs_text, all_pairs, difference_text, estimate_text)
    environment.filters |= {function.__name__: function for function in shown}
    return environment


def _is_few(records: Sequence[RunRecord]) -> bool:
    return len(records) <= MAX_SEPARATE_RUNS


def _title(records: Sequence[RunRecord]) -> str:
    """Every name of a few runs; of many their number, the first and the last."""
    names = [record.run_id for record in records]
    return ", ".join(names) if _is_few(records) else f"{len(names)} runs: {names[0]} … {names[-1]}"


def _sources(records: Sequence[RunRecord]) -> list[str]:
    """The runs' URLs; of many runs the stores that they lie in."""
    urls = [record.url for record in records]
    return urls if _is_few(records) else list(dict.fromkeys(url.rpartition("/")[0] for url in urls))


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


def _samples(run: GatheredRun, stores: Mapping[str, Store], num_samples: int) -> list[dict[str, Any]]:
    if num_samples == 0 or GENERATIONS_KEY.partition("/")[0] not in run.folders:
        return []
    store = stores[run.record.url]
    if not store.exists(GENERATIONS_KEY):
        return []
    picked = pick(answers(store, run.record.run_id), num_samples)
    return [
        {
            "sample": sample,
            "prompt": shortened(sample.prompt, MAX_TEXT_CHARS),
            "response": shortened(sample.response, MAX_TEXT_CHARS),
        }
        for sample in picked
    ]


def _comparisons(records: Sequence[RunRecord], stores: Mapping[str, Store]) -> list[Comparison]:
    groups = group_runs(records)
    return compare_groups(groups, stores, default_metrics(records)) if len(groups) > 1 else []
