"""The report page: one self-contained HTML file, all text escaped, under a policy that runs its own scripts only.

uPlot 1.6.32 (MIT) is the npm package's dist/uPlot.iife.min.js, dist/uPlot.min.css and LICENSE, unchanged.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from opd.agent.trajectories import FOLDER, Trajectory, from_lines
from opd.evaluation.samples import Sample
from opd.redaction import redact
from opd.runs.identity import describe_changes
from opd.text import policy, shortened, storable
from opdctl.console import note
from opdctl.report import provenance
from opdctl.report.curves import pack
from opdctl.runs.compare import answers, compare_groups, comparison_sheets, default_metrics, group_runs, leaves
from opdctl.runs.gather import GENERATIONS_KEY, LoadedRun
from opdctl.runs.metrics import series
from opdctl.runs.record import RunRecord
from opdctl.runs.sheets import checkpoints_sheet, evaluation_sheet, runs_sheet
from opdctl.tables import Sheet, number

SCRIPTS = ("uplot-1.6.32.min.js", "curves.js")
STYLES = ("uplot-1.6.32.min.css", "report.css")
NOTICE = "uplot-LICENSE"
# More runs share tables; only the first has texts and tokens.
MAX_SEPARATE_RUNS = 12
MAX_CHARS = 1500
NUM_ANSWERS = 12
TIMES = ("timing/", "timing_s/")
"""Prefixes of the metrics of a step's parts, seconds."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the page: tables, answers next to each other by their headings, and lines of text."""

    id: str
    title: str
    sheets: Sequence[Sheet] = ()
    answers: Sequence[Mapping[str, Sample]] = ()
    lines: Sequence[str] = ()


@cache
def asset(name: str) -> str:
    """Return the text of a script or style that a report contains."""
    return (files("opdctl.report") / "assets" / name).read_text(encoding="utf-8")


def report_page(runs: Sequence[LoadedRun]) -> str:
    """Return the page's HTML."""
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
        Part(id="conversations", title="Conversations", answers=_conversations(few)),
        Part(id="generations", title="Sample answers", answers=_answers(few)),
        Part(id="origin", title="Origin", sheets=[*provenance.tables(runs), *checkpoints]),
        Part(id="experiment", title="Experiment", sheets=_settings(records)),
    ]
    curves = pack(runs, groups)
    scripts = tuple(map(asset, SCRIPTS)) if curves else ()
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
        parts=[part for part in parts if part.sheets or part.answers or part.lines],
        curves=curves,
    )  # fmt: skip
    return storable(page)


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


def _conversations(runs: Sequence[LoadedRun]) -> list[dict[str, Sample]]:
    """Return the conversations of each run's newest file of a partition. An unreadable file is noted."""
    rows: list[dict[str, Sample]] = []
    for run in runs:
        kept = sorted(key for key in run.listing.objects if key.startswith(f"{FOLDER}/"))
        newest = {key.rpartition("-")[0]: key for key in kept}
        for key in newest.values():
            try:
                talks = from_lines(run.listing.store.get(key))
            except ValueError as error:
                note(f"warning: {run.record.run_id}: {key} is left out: {error}")
                continue
            rows += [{f"{run.record.run_id}, {talk.partition}, step {talk.step}": _as_answer(talk)} for talk in talks]
    return rows


def _as_answer(talk: Trajectory) -> Sample:
    """Return a conversation as an answer: what the model did not write has a mark in front of each line."""
    masked = ("\n".join(f"| {line}" for line in part.text.split("\n")) for part in talk.segments)
    texts = [part.text if part.trained else text for part, text in zip(talk.segments, masked, strict=True)]
    return Sample(
        run_id="", step=talk.step, data_source=talk.data_source, problem_index=talk.data_index, sample_index=talk.sample,
        prompt=talk.prompt, response="\n".join(texts), pred=f"{talk.ending}, score {talk.score:g}",
        ground_truth=talk.ground_truth, score=talk.score, acc=float(talk.breakdown.get("acc", talk.score > 0)),
        failed=False, num_tokens=sum(part.num_tokens for part in talk.segments), truncated=False,
    )  # fmt: skip


def _answers(runs: Sequence[LoadedRun]) -> list[dict[str, Sample]]:
    """Return evaluated answers of each run to the same problems; problems that a run got wrong come first."""
    rows: dict[tuple[str, int], dict[str, Sample]] = {}
    for run in runs:
        if GENERATIONS_KEY in run.listing:
            for sample in answers(run.listing.store, run.record.run_id):
                row = rows.setdefault((sample.data_source, sample.problem_index), {})
                row.setdefault(run.record.run_id, sample)
    by_accuracy = sorted(
        rows.items(), key=lambda item: (-len(item[1]), min(one.acc for one in item[1].values()), item[0])
    )
    return [row for _, row in by_accuracy[:NUM_ANSWERS]]


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
