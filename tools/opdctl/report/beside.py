"""Makes the pages that lie beside a report, which links to them: an agent run's conversations, a training run's tokens;
what the report itself shows of them comes with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote

from opd.agent import trajectories
from opd.agent.viewer import collect
from opd.agent.viewer.page import render as render_conversations
from opd.runs import tokens
from opd.store.base import Store
from opdctl.console import note
from opdctl.report import side_by_side, token_page
from opdctl.report.density import Curve, draw_all
from opdctl.runs.gather import GatheredRun

Found = TypeVar("Found")
Links = dict[str, str]
"""Of pages beside the report, relative to it, by run id."""
Write = Callable[[str, str], None]
"""Takes a page's file name and its HTML."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What runs kept of what models wrote, by run id."""

    conversations: Links = field(default_factory=dict)
    tokens: Links = field(default_factory=dict)
    densities: dict[str, list[Curve]] = field(default_factory=dict)
    """Pictures of the tokens."""
    rollouts: dict[str, list[side_by_side.Beside]] = field(default_factory=dict)
    """Texts over the steps."""


def write_pages(
    runs: Sequence[GatheredRun], stores: Mapping[str, Store], write: Write, *, stem: str, max_with_tokens: int
) -> Kept:
    """One page for each run that kept conversations, and for each that kept tokens.

    Args:
        write: takes them, one at a time.
        stem: the report's file name without its ending, with which theirs begin.
        max_with_tokens: of more runs only the first gets a page of tokens, and none its rollouts on the report.
    """

    def put(name: str, html: str) -> str:
        file = f"{stem}-{name}.html"
        write(file, html)
        return quote(file)

    kept = Kept()
    is_few = len(runs) <= max_with_tokens
    for number, run_id, talks in _kept(runs, stores, trajectories.FOLDER, collect.load):
        kept.conversations[run_id] = put(f"conversations-{number}", render_conversations(run_id, talks))
        if is_few:
            kept.rollouts[run_id] = side_by_side.of_trajectories(talks)
    for number, run_id, steps in _kept(runs if is_few else runs[:1], stores, tokens.FOLDER, token_page.load):
        kept.tokens[run_id] = put(f"tokens-{number}", token_page.render(run_id, steps))
        kept.densities[run_id] = draw_all(steps)
        if is_few and run_id not in kept.rollouts:
            kept.rollouts[run_id] = side_by_side.of_tokens(steps)
    return kept


def _kept(
    runs: Sequence[GatheredRun], stores: Mapping[str, Store], folder: str, load: Callable[[Store], list[Found]]
) -> Iterator[tuple[int, str, list[Found]]]:
    """(number, id, content of the folder) of each run that has any; what cannot be read is warned of and left out."""
    for number, run in enumerate(runs, start=1):
        if folder not in run.folders:
            continue
        try:
            found = load(stores[run.record.url])
        except ValueError as error:
            note(f"warning: {run.record.run_id}: its {folder} are left out: {error}")
            continue
        if found:
            yield number, run.record.run_id, found
