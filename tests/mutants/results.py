"""The table of a run of mutants, as Markdown: counts by file, then what no test killed, with the reason where there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from tests.commit import this_commit
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.mutant import Mutant
from tests.mutants.trial import SURVIVED

_NOT_JUDGED = "not judged"
_KINDS = ("killed", "equivalent", SURVIVED, _NOT_JUDGED)


def judge(mutant: Mutant, verdict: str) -> str:
    """A verdict, with the reason where a survivor changes nothing."""
    reason = EQUIVALENT.get(mutant.describe())
    return f"equivalent: {reason}" if verdict == SURVIVED and reason else verdict


def table(mutants: Sequence[Mutant], judged: Mapping[Mutant, str], call: str) -> str:
    """`judged` holds a verdict of each mutant that was run to its end."""
    verdicts = {mutant: judged.get(mutant, _NOT_JUDGED) for mutant in mutants}
    kinds = {mutant: next(kind for kind in _KINDS if verdict.startswith(kind)) for mutant, verdict in verdicts.items()}
    by_file = Counter((mutant.file, kind) for mutant, kind in kinds.items())
    total = Counter(kinds.values())
    lines = [
        "# Mutants",
        "",
        f"`{call}` on {datetime.now(UTC):%Y-%m-%d}, commit {this_commit()}: "
        + ", ".join(f"{total[kind]} {kind}" for kind in _KINDS if total[kind] or kind == SURVIVED)
        + f" of {len(mutants)}.",
        "",
        f"| file below src/opd | {' | '.join(_KINDS)} |",
        f"|---|{'---|' * len(_KINDS)}",
    ]
    for file in sorted({mutant.file for mutant in mutants}):
        lines.append(f"| {file} | {' | '.join(str(by_file[file, kind]) for kind in _KINDS)} |")
    alive = [f"- `{mutant.describe()}`: {verdicts[mutant]}" for mutant in mutants if kinds[mutant] != "killed"]
    return "\n".join([*lines, "", *alive]).rstrip() + "\n"
