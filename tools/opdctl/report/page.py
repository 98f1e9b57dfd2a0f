"""The report page: one self-contained HTML file, all text escaped, under a policy that runs its own scripts only."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import Environment, PackageLoader, StrictUndefined

from opd.agent import trajectories, viewer
from opd.evaluation.pass_rates import PASS_RATES_KEY, WEIGHT, WEIGHTS_FOLDER
from opd.redaction import redact
from opd.runs import tokens
from opd.runs.identity import describe_changes
from opd.store.base import Store
from opd.text import policy, storable
from opdctl.console import note
from opdctl.report import provenance, texts, token_page
from opdctl.report.assets import NOTICE, SCRIPTS, STYLES, read
from opdctl.report.curves import pack
from opdctl.report.steps import time_table, validation_table
from opdctl.runs.compare import GENERATIONS_KEY, answers, group_runs
from opdctl.runs.compare_view import MAX_SEPARATE, compare_groups, default_metrics, differences_table, overview_table
from opdctl.runs.gather import GatheredRun
from opdctl.runs.record import RunRecord
from opdctl.runs.tables import Sheet, checkpoints_table, eval_table, number, numbers_table, percent, runs_table

# More runs share tables; only the first has texts and tokens.
MAX_SEPARATE_RUNS = 12
# More runs have no column each in a table of answers.
MAX_COLUMNS = 6
NUM_BARS = 10
Found = TypeVar("Found")
Stores = Mapping[str, Store]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the page: tables, tables of texts, links (address, words), and lines of text."""

    id: str
    title: str
    sheets: Sequence[Sheet] = ()
    texts: Sequence[texts.TextTable] = ()
    links: Sequence[tuple[str, str]] = ()
    lines: Sequence[str] = ()


def write_report(
    runs: Sequence[GatheredRun], stores: Stores, write: Callable[[str, str], None], *, stem: str, num_samples: int
) -> None:
    """Write the page `STEM.html`, and a page for each run's conversations and for its tokens.

    Args:
        write: takes a file's name and its HTML.
    """
    parts = [_overview(runs), *_measured(runs, stores)]
    parts += _texts(
        runs[:1] if len(runs) > MAX_SEPARATE_RUNS else runs, stores, write, stem=stem, num_samples=num_samples
    )
    parts += [_problems(runs, stores), _origin(runs), _experiment([run.record for run in runs])]
    write(f"{stem}.html", render([run.record for run in runs], runs, [part for part in parts if _has_content(part)]))


def render(records: Sequence[RunRecord], runs: Sequence[GatheredRun], parts: Sequence[Part]) -> str:
    """Return the page as HTML that UTF-8 can hold."""
    curves = pack(runs, group_runs(records))
    scripts = tuple(map(read, SCRIPTS)) if curves.packed else ()
    names = [record.run_id for record in records]
    is_few = len(names) <= MAX_SEPARATE_RUNS
    environment = Environment(
        loader=PackageLoader("opdctl.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    page = environment.get_template("report.html.j2").render(
        policy=policy(scripts),
        scripts=scripts,
        styles="".join(map(read, STYLES)),
        notice=read(NOTICE),
        title=", ".join(names) if is_few else f"{len(names)} runs: {names[0]} … {names[-1]}",
        written_at=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        parts=parts,
        curves=curves,
        is_large=not is_few,
    )
    return storable(page)


def _has_content(part: Part) -> bool:
    return bool(part.sheets or part.texts or part.links or part.lines)


def _overview(runs: Sequence[GatheredRun]) -> Part:
    lines = []
    for record in (run.record for run in runs):
        lines += [f"{record.run_id} {record.state}: {record.detail}"] if record.detail else []
        lines += [f"{record.run_id}: fault {fault}" for fault in record.faults]
        lines += [f"{record.run_id}: {problem}" for problem in record.problems]
    return Part(
        id="runs", title="Runs", sheets=[runs_table([run.record for run in runs])], lines=list(map(redact, lines))
    )


def _measured(runs: Sequence[GatheredRun], stores: Stores) -> list[Part]:
    """Return the tables of times, validations, evaluations, and differences to the first group."""
    records = [run.record for run in runs]
    evaluations = [table for record in records for make in (eval_table, numbers_table) if (table := make(record))]
    groups = group_runs(records)
    found = compare_groups(groups, stores, default_metrics(records)) if len(groups) > 1 else []
    differences: list[Sheet] = []
    if len(found) > MAX_SEPARATE:
        differences = [overview_table(found)]
    for item in found if not differences else ():
        changes = Sheet(
            names=("changed key",),
            lines=[(redact(line),) for line in item.changes],
            title=f"{item.before} → {item.after}",
        )
        differences += [changes, differences_table(item.differences)]
    return [
        Part(id="time", title="Step time", sheets=_sheets(time_table(runs))),
        Part(id="validation", title="Validation", sheets=_sheets(validation_table(runs))),
        Part(id="evaluation", title="Evaluation", sheets=evaluations),
        Part(id="differences", title=f"Differences to {groups[0].name}", sheets=differences),
    ]


def _sheets(sheet: Sheet | None) -> list[Sheet]:
    return [sheet] if sheet is not None else []


def _texts(
    runs: Sequence[GatheredRun], stores: Stores, write: Callable[[str, str], None], *, stem: str, num_samples: int
) -> list[Part]:
    """Write the pages of conversations and tokens; return the parts with links to them, rollouts and answers."""
    rollouts: list[texts.TextTable] = []
    links: list[tuple[str, str]] = []
    samples = {}
    for place, run in enumerate(runs, start=1):
        run_id, store = run.record.run_id, stores[run.record.url]
        if talks := _read(run, trajectories.FOLDER, partial(viewer.load, store)):
            write(name := f"{stem}-conversations-{place}.html", viewer.render(run_id, talks))
            links.append((quote(name), f"{run_id}: turns, calls and the author of each token"))
            rollouts += texts.of_trajectories(talks)
        if steps := _read(run, tokens.FOLDER, partial(token_page.load, store)):
            write(name := f"{stem}-tokens-{place}.html", token_page.render(run_id, steps))
            links.append((quote(name), f"{run_id}: sample rollouts, each token by entropy, divergence and choice"))
            rollouts += [] if talks else texts.of_tokens(steps)
        if num_samples and GENERATIONS_KEY in run.listing and (found := answers(store, run_id)):
            samples[run_id] = texts.in_turn(found)
    shared = [samples] if len(samples) <= MAX_COLUMNS else [{run_id: found} for run_id, found in samples.items()]
    generations = [texts.of_answers(group, max_rows=num_samples) for group in shared if group]
    return [
        Part(id="rollouts", title="Rollouts over the steps", texts=rollouts, links=links),
        Part(id="generations", title="Sample answers", texts=generations),
    ]


def _read(run: GatheredRun, folder: str, load: Callable[[], list[Found]]) -> list[Found]:
    """Load the content of a run's folder; note an unreadable file and leave the folder out."""
    try:
        return load() if folder in run.listing.tops else []
    except ValueError as error:
        note(f"warning: {run.record.run_id}: its {folder} are left out: {error}")
        return []


def _problems(runs: Sequence[GatheredRun], stores: Stores) -> Part:
    """Return how many prompts of each run have which pass rate, with the mean weight where a distillation weighs them."""
    sheets = []
    for run in runs[:MAX_SEPARATE_RUNS]:
        weights = sorted(key for key in run.listing.objects if key.startswith(f"{WEIGHTS_FOLDER}/"))
        keys = weights[-1:] or [key for key in [PASS_RATES_KEY] if key in run.listing]
        for key in keys:
            try:
                sheets.append(_histogram(run.record.run_id, pq.read_table(io.BytesIO(stores[run.record.url].get(key)))))
            except (ArithmeticError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
                note(f"warning: {run.record.run_id}: its pass rates are left out: {' '.join(str(error).split())}")
    return Part(id="problems", title="Problems", sheets=sheets)


def _histogram(run_id: str, table: pa.Table) -> Sheet:
    rates = [float(rate) for rate in table["pass_rate"].to_pylist()]
    if not rates or not all(0 <= rate <= 1 for rate in rates):
        raise ValueError("a file without a prompt, or with a pass rate beyond 0 and 1")
    weights = table[WEIGHT].to_pylist() if WEIGHT in table.column_names else []
    bars: dict[int, list[int]] = {}
    for place, rate in enumerate(rates):
        bars.setdefault(int(rate * NUM_BARS + 0.5), []).append(place)
    lines = [
        (
            percent(bar / NUM_BARS),
            str(len(places)),
            *([number(sum(weights[i] for i in places) / len(places))] if weights else []),
        )
        for bar, places in sorted(bars.items())
    ]
    names = ("pass rate, %, rounded", "prompts", *(["mean weight"] if weights else []))
    caption = f"{len(rates):,} prompts, mean pass rate {percent(sum(rates) / len(rates))} %"
    return Sheet(names=names, lines=lines, title=f"{run_id}: prompts by pass rate", caption=caption)


def _origin(runs: Sequence[GatheredRun]) -> Part:
    checkpoints = [table for run in runs[:MAX_SEPARATE_RUNS] if (table := checkpoints_table(run.record))]
    return Part(id="origin", title="Origin", sheets=[*provenance.tables(provenance.origins(runs)), *checkpoints])


def _experiment(records: Sequence[RunRecord]) -> Part:
    """Return the first run's settings, and the settings in which other runs differ from it."""
    first = records[0]
    settings = [(path, redact(str(value))) for path, value in leaves(first.spec)]
    sheets = [Sheet(names=("key", "value"), lines=settings, title=f"{first.run_id}: experiment")] if settings else []
    changes = [
        (record.run_id, "\n".join(map(redact, found)))
        for record in records[1:]
        if (found := describe_changes(first.spec, record.spec))
    ]
    title = f"Settings that differ from {first.run_id}"
    return Part(
        id="experiment",
        title="Experiment",
        sheets=[*([Sheet(names=("run", "changed keys"), lines=changes, title=title)] if changes else []), *sheets],
    )


def leaves(tree: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return every leaf of a spec with its dotted path, in the spec's order."""
    if isinstance(tree, Mapping) and tree:
        return [leaf for key, inner in tree.items() for leaf in leaves(inner, f"{path}.{key}" if path else str(key))]
    return [(path, tree)]
