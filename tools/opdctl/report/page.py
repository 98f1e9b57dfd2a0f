"""The report page: one self-contained HTML file, all text escaped, under a policy that runs its own scripts only.

uPlot (MIT, https://github.com/leeoniya/uPlot) is kept unchanged: the npm package uplot, version 1.6.32,
dist/uPlot.iife.min.js, dist/uPlot.min.css and LICENSE.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from opd.agent import trajectories, viewer
from opd.evaluation.samples import Sample
from opd.redaction import redact
from opd.runs.identity import describe_changes
from opd.text import policy, shortened, storable
from opdctl.console import note
from opdctl.report import provenance
from opdctl.report.curves import pack
from opdctl.runs.compare import answers, compare_groups, comparison_sheets, default_metrics, group_runs
from opdctl.runs.gather import GENERATIONS_KEY, LoadedRun
from opdctl.runs.metrics import series
from opdctl.runs.record import RunRecord
from opdctl.runs.sheets import checkpoints_sheet, evaluation_sheet, runs_sheet
from opdctl.tables import Sheet, number

UPLOT = "uplot-1.6.32.min.js"
SHA256 = {
    UPLOT: "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
SCRIPTS = (UPLOT, "curves.js")
STYLES = ("uplot-1.6.32.min.css", "report.css")
NOTICE = "uplot-LICENSE"
# More runs share tables; only the first has texts and tokens.
MAX_SEPARATE_RUNS = 12
MAX_CHARS = 1500
TIMES = ("timing/", "timing_s/")
"""Prefixes of the metrics of a step's parts, seconds."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the page: tables, sample answers by problem and run, links (address, words), and lines of text."""

    id: str
    title: str
    sheets: Sequence[Sheet] = ()
    answers: Sequence[Mapping[str, Sample]] = ()
    links: Sequence[tuple[str, str]] = ()
    lines: Sequence[str] = ()


@cache
def asset(name: str) -> str:
    """Return the text of a script or style that a report contains."""
    return (files("opdctl.report") / "assets" / name).read_text(encoding="utf-8")


def write_report(runs: Sequence[LoadedRun], write: Callable[[str, str], None], *, stem: str, num_samples: int) -> None:
    """Write the page `STEM.html`, and a page for each run's conversations.

    Args:
        write: takes a file's name and its HTML.
    """
    records = [run.record for run in runs]
    few = runs[:1] if len(runs) > MAX_SEPARATE_RUNS else runs
    groups = group_runs(records)
    stores = {run.record.url: run.listing.store for run in runs}
    compared = compare_groups(groups, stores, default_metrics(records)) if len(groups) > 1 else []
    checkpoints = [table for record in records[:MAX_SEPARATE_RUNS] if (table := checkpoints_sheet(record))]
    remarks = [f"{record.run_id}: {line}" for record in records for line in record.remarks]
    parts = [
        Part(id="runs", title="Runs", sheets=[runs_sheet(records)], lines=remarks),
        Part(id="time", title="Step time", sheets=_times(runs)),
        Part(id="evaluation", title="Evaluation", sheets=[*filter(None, [evaluation_sheet(records)])]),
        Part(id="differences", title="Differences", sheets=comparison_sheets(compared) if compared else []),
        Part(id="conversations", title="Conversations", links=_conversations(few, write, stem=stem)),
        Part(id="generations", title="Sample answers", answers=_answers(few, num_samples)),
        Part(id="origin", title="Origin", sheets=[*provenance.tables(runs), *checkpoints]),
        Part(id="experiment", title="Experiment", sheets=_settings(records)),
    ]
    curves = pack(runs, groups)
    scripts = tuple(map(asset, SCRIPTS)) if curves.packed else ()
    names = [record.run_id for record in records]
    templates = Environment(
        loader=PackageLoader("opdctl.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    templates.filters |= {"shortened": lambda text: shortened(text, MAX_CHARS), "redact": redact}
    page = templates.get_template("report.html.j2").render(
        policy=policy(scripts),
        scripts=scripts,
        styles="".join(map(asset, STYLES)),
        notice=asset(NOTICE),
        title=", ".join(names) if few is runs else f"{len(names)} runs: {names[0]} … {names[-1]}",
        written_at=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        parts=[part for part in parts if part.sheets or part.answers or part.links or part.lines],
        curves=curves,
        is_large=few is not runs,
    )  # fmt: skip
    write(f"{stem}.html", storable(page))


def _times(runs: Sequence[LoadedRun]) -> list[Sheet]:
    """Return the mean seconds of each measured part of a step, one column a run."""
    means: dict[str, dict[str, float]] = {}
    for run in runs[:MAX_SEPARATE_RUNS]:
        table = run.metrics
        for name in filter(lambda name: name.startswith(TIMES), table.column_names):
            if len(values := series(table, name)[1]):
                means.setdefault(name, {})[run.record.run_id] = float(values.mean())
    ids = [run.record.run_id for run in runs[:MAX_SEPARATE_RUNS]]
    ordered = sorted(means.items(), key=lambda item: -max(item[1].values()))
    lines = [(name, *(number(found.get(run_id)) for run_id in ids)) for name, found in ordered]
    caption = "Mean seconds over the steps that logged it."
    return [Sheet(names=("part of a step", *ids), lines=lines, caption=caption)] if lines else []


def _conversations(runs: Sequence[LoadedRun], write: Callable[[str, str], None], *, stem: str) -> list[tuple[str, str]]:
    """Write a page of each run's conversations; return the links to them. An unreadable file is noted."""
    links = []
    for place, run in enumerate(runs, start=1):
        run_id = run.record.run_id
        try:
            talks = viewer.load(run.listing.store) if trajectories.FOLDER in run.listing.tops else []
        except ValueError as error:
            note(f"warning: {run_id}: its {trajectories.FOLDER} are left out: {error}")
            continue
        if talks:
            write(name := f"{stem}-conversations-{place}.html", viewer.render(run_id, talks))
            links.append((quote(name), f"{run_id}: turns, calls and the author of each token"))
    return links


def _answers(runs: Sequence[LoadedRun], num_samples: int) -> list[dict[str, Sample]]:
    """Return evaluated answers of each run to the same problems; problems that a run got wrong come first."""
    rows: dict[tuple[str, int], dict[str, Sample]] = {}
    for run in runs if num_samples else ():
        if GENERATIONS_KEY in run.listing:
            for sample in answers(run.listing.store, run.record.run_id):
                row = rows.setdefault((sample.data_source, sample.problem_index), {})
                row.setdefault(run.record.run_id, sample)
    by_accuracy = sorted(
        rows.items(), key=lambda item: (-len(item[1]), min(one.acc for one in item[1].values()), item[0])
    )
    return [row for _, row in by_accuracy[:num_samples]]


def _settings(records: Sequence[RunRecord]) -> list[Sheet]:
    """Return the first run's settings, after the settings in which other runs differ from it."""
    first = records[0]
    lines = [(path, str(value)) for path, value in leaves(first.spec)]
    changes = [
        (item.run_id, "\n".join(found)) for item in records[1:] if (found := describe_changes(first.spec, item.spec))
    ]
    title = f"Settings that differ from {first.run_id}"
    sheets = [Sheet(names=("run", "changed keys"), lines=changes, title=title)] if changes else []
    return sheets + ([Sheet(names=("key", "value"), lines=lines, title=f"{first.run_id}: experiment")] if lines else [])


def leaves(tree: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return every leaf of a spec with its dotted path, in the spec's order."""
    if isinstance(tree, Mapping) and tree:
        return [leaf for key, inner in tree.items() for leaf in leaves(inner, f"{path}.{key}" if path else str(key))]
    return [(path, tree)]
