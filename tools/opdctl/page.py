"""Owns the report page: gathers what the template shows, all of it escaped, under a policy that runs no script."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from opd.evaluation.samples import Sample, read_generations
from opd.runs.identity import describe_changes
from opd.runs.store import Store
from opdctl.compare_view import default_metrics, differences, estimate_text
from opdctl.comparing import GENERATIONS_KEY, group_runs
from opdctl.curves import draw_all
from opdctl.gather import GatheredRun
from opdctl.records import RunRecord
from opdctl.redact import redact
from opdctl.tables import ago, number, percent, progress_text, size, validation_lines, with_error

MAX_TEXT_CHARS = 4000


def render_page(
    runs: Sequence[GatheredRun],
    stores: Mapping[str, Store],
    *,
    num_samples: int,
    conversations: Mapping[str, str] | None = None,
) -> str:
    """The page as HTML, with everything inside it; `conversations` are links to other pages, by run id."""
    records = [run.record for run in runs]
    environment = Environment(
        loader=PackageLoader("opdctl"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "percent": percent, "size": size, "ago": ago, "redact": redact}
    return environment.get_template("report.html.j2").render(
        title=", ".join(record.run_id for record in records),
        written_at=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        records=records,
        progress_text=progress_text,
        validation_lines=validation_lines,
        with_error=with_error,
        conversations=dict(conversations or {}),
        curves=draw_all([(run.record.run_id, run.metrics()) for run in runs]),
        evaluations={record.run_id: sets for record in records if (sets := (record.result or {}).get("eval"))},
        comparisons=_comparisons(records, stores),
        specs={record.run_id: list(leaves(record.spec)) for record in records},
        samples={record.run_id: shown for record in records if (shown := _samples(stores[record.url], num_samples))},
    )


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


def _samples(store: Store, num_samples: int) -> list[dict[str, Any]]:
    if num_samples == 0 or not store.exists(GENERATIONS_KEY):
        return []
    with tempfile.TemporaryDirectory(prefix="opdctl-") as folder:
        path = Path(folder) / "generations.parquet"
        store.get_file(GENERATIONS_KEY, path)
        picked = pick(read_generations(path), num_samples)
    return [
        {"sample": sample, "prompt": _shortened(sample.prompt), "response": _shortened(sample.response)}
        for sample in picked
    ]


def _shortened(text: str) -> str:
    """A very long answer keeps its beginning and its end, where the result stands."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _comparisons(records: Sequence[RunRecord], stores: Mapping[str, Store]) -> list[dict[str, Any]]:
    """Each group of runs against the first: what differs in the specs, and the differences with their errors."""
    groups = group_runs(records)
    out = []
    for other in groups[1:]:
        found = differences(groups[0], other, stores, default_metrics(records))
        out.append(
            {
                "before": groups[0].name,
                "after": other.name,
                "changes": describe_changes(groups[0].records[0].spec, other.records[0].spec),
                "rows": [
                    {
                        "quantity": item.quantity,
                        "before": estimate_text(item.before),
                        "after": estimate_text(item.after),
                        "difference": estimate_text(item.difference, sign="+"),
                        "pairs": f"{item.num_pairs} by {item.paired_by}" if item.paired_by else "not paired",
                    }
                    for item in found
                ],
            }
        )
    return out
