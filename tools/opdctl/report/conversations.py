"""Writes the pages of agent runs' conversations beside a report, which links to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from opd.agent.trajectories import FOLDER
from opd.agent.viewer.collect import load
from opd.agent.viewer.page import render
from opd.store.base import Store
from opdctl.console import note
from opdctl.runs.export import binary_file
from opdctl.runs.gather import GatheredRun


def write_pages(runs: Sequence[GatheredRun], stores: Mapping[str, Store], report: Path) -> dict[str, str]:
    """One page for each run that kept conversations; relative links to them by run id."""
    links: dict[str, str] = {}
    for number, run in enumerate(runs, start=1):
        if FOLDER not in run.folders:
            continue
        record = run.record
        try:
            trajectories = load(stores[record.url])
        except ValueError as error:
            note(f"warning: {record.run_id}: its conversations are left out: {error}")
            continue
        if not trajectories:
            continue
        page = report.with_name(f"{report.stem}-conversations-{number}.html")
        with binary_file(page) as file:
            file.write(render(record.run_id, trajectories).encode())
        links[record.run_id] = quote(page.name)
    return links
