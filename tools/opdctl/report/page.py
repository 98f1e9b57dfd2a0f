"""The report page: one self-contained HTML file, all text escaped, under a policy that runs its own scripts only.

uPlot 1.6.32 (MIT) is the npm package's dist/uPlot.iife.min.js, dist/uPlot.min.css and LICENSE, unchanged.
"""

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic_core import to_jsonable_python

from opd.evaluation.samples import Sample
from opd.experiment import SPEC_CLASSES
from opd.experiment.defaults import fill_defaults
from opd.experiment.tree import MISSING, field_at, get_path
from opd.redaction import redact
from opd.runs.identity import describe_changes
from opd.text import policy, shortened, storable
from opdctl.report import provenance
from opdctl.report.curves import pack
from opdctl.report.kept import Picture, Tokens, answers_by_step, histograms, kept_steps
from opdctl.runs.compare import answers, compare_groups, comparison_sheets, default_metrics, group_runs, leaves
from opdctl.runs.gather import GENERATIONS_KEY, LoadedRun
from opdctl.runs.metrics import series
from opdctl.runs.record import RunRecord
from opdctl.runs.sheets import checkpoints_sheet, evaluation_sheet, runs_sheet
from opdctl.tables import Sheet, number

SCRIPTS = ("tables.js", "uplot-1.6.32.min.js", "curves.js")
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
    """One part of the page: pictures, rollouts token by token, tables, answers next to each other by their headings, lines of text."""

    id: str
    title: str
    sheets: Sequence[Sheet] = ()
    answers: Sequence[Mapping[str, Sample]] = ()
    pictures: Sequence[Picture] = ()
    tokens: Sequence[Tokens] = ()
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
    has_answers = [run for run in few if GENERATIONS_KEY in run.listing]
    evaluated = {run.record.run_id: answers(run.listing.store, run.record.run_id) for run in has_answers}
    steps = kept_steps(few)
    lengths: dict[str, Sequence[int]] = {
        name: [sample.num_tokens for sample in samples] for name, samples in evaluated.items() if samples
    }
    lengths |= {step.name: step.lengths for step in steps if step.lengths}
    shown = [tokens for step in steps for tokens in step.shown]
    remarks = [f"{record.run_id}: {line}" for record in records for line in record.remarks]
    parts = [
        Part(id="runs", title="Runs", sheets=[runs_sheet(records)], lines=remarks),
        Part(id="time", title="Step time", sheets=_times(runs)),
        Part(id="evaluation", title="Evaluation", sheets=[*filter(None, [evaluation_sheet(records)])]),
        Part(id="differences", title="Differences", sheets=comparison_sheets(compared) if compared else []),
        Part(id="samples", title="Samples by step", answers=answers_by_step(few)),
        Part(id="generations", title="Sample answers", answers=_answers(evaluated)),
        Part(
            id="lengths", title="Lengths and tokens", pictures=[*histograms(lengths), *(step.density for step in steps)]
        ),
        Part(id="tokens", title="Token by token", tokens=shown, sheets=[step.sheet for step in steps]),
        Part(id="origin", title="Origin", sheets=[*provenance.tables(runs), *checkpoints]),
        Part(id="experiment", title="Experiment", sheets=_settings(records)),
    ]
    curves = pack(runs, groups)
    scripts = tuple(map(asset, SCRIPTS if curves else SCRIPTS[:1]))
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
        parts=[part for part in parts if any((part.sheets, part.answers, part.pictures, part.tokens, part.lines))],
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


def _answers(evaluated: Mapping[str, Sequence[Sample]]) -> list[dict[str, Sample]]:
    """Return evaluated answers of each run to the same problems; problems that a run got wrong come first."""
    rows: dict[tuple[str, int], dict[str, Sample]] = {}
    for run_id, samples in evaluated.items():
        for sample in samples:
            rows.setdefault((sample.data_source, sample.problem_index), {}).setdefault(run_id, sample)
    by_accuracy = sorted(
        rows.items(), key=lambda item: (-len(item[1]), min(one.acc for one in item[1].values()), item[0])
    )
    return [row for _, row in by_accuracy[:NUM_ANSWERS]]


def _settings(records: Sequence[RunRecord]) -> list[Sheet]:
    """Return settings in which other runs differ from the first, the first's that are no defaults, and its others."""
    first = records[0]
    own, others = list[tuple[str, str]](), list[tuple[str, str]]()
    for path, value in leaves(first.spec):
        is_own = path == "kind" or not _is_default(first.spec, path, value)
        (own if is_own else others).append((path, str(value)))
    changes = [
        (item.run_id, "\n".join(found)) for item in records[1:] if (found := describe_changes(first.spec, item.spec))
    ]
    sheets = [
        Sheet(names=("run", "changed keys"), lines=changes, title=f"Settings that differ from {first.run_id}"),
        Sheet(names=("key", "value"), lines=own, title=f"{first.run_id}: keys that are not the default"),
        Sheet(names=("key", "value"), lines=others),
    ]
    return [sheet for sheet in sheets if sheet.lines]


def _is_default(spec: Mapping[str, Any], path: str, value: Any) -> bool:
    """Return whether a spec without the key gives it this value; False where this version cannot tell."""
    tree, (section, _, name) = deepcopy(dict(spec)), path.rpartition(".")
    try:
        del (get_path(tree, section) if section else tree)[name]
        fill_defaults(spec["kind"], cls := SPEC_CLASSES[spec["kind"]], tree, lambda: None)
        found, field = get_path(tree, path), field_at(cls, path)
        found = field.get_default(call_default_factory=True) if found is MISSING and field else found
    except (KeyError, TypeError, AttributeError, ValueError):
        return False
    return bool(to_jsonable_python(found, exclude_none=True, fallback=str) == value)
