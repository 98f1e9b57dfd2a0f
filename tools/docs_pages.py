"""Reference pages of the docs site that mkdocs makes from the code: keys by kind, environment variables, command lines.

A page in `docs/reference` holds a line `<!-- NAME -->` for each table; this hook of mkdocs.yml replaces it.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]  # mkdocs takes these away after this import

import typer  # noqa: E402

from opd.experiment import FILE_KINDS, SPEC_CLASSES, VARIABLES  # noqa: E402
from opd.experiment.cluster import Cluster  # noqa: E402
from opd.experiment.keys import Key, keys_of  # noqa: E402
from opd.launch import parser  # noqa: E402
from opd.monitor.faults import FAULTS  # noqa: E402
from opdctl.cli import GROUPS, app  # noqa: E402


def _cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _of_kinds(kinds: Iterable[str]) -> str:
    named = [kind for kind in FILE_KINDS if kind in set(kinds)]
    return "all" if len(named) == len(FILE_KINDS) else ", ".join(named)


def _facts(by_kind: dict[str, Key]) -> str:
    """Return the type and default of a key; where kinds differ, each form with its kinds."""
    forms: dict[str, list[str]] = {}
    for kind, key in by_kind.items():
        forms.setdefault(key.facts, []).append(kind)
    if len(forms) == 1:
        return next(iter(forms))
    return " · ".join(f"{facts} ({_of_kinds(kinds)})" for facts, kinds in forms.items())


def keys() -> str:
    """Return the keys of all kinds, one table a section."""
    found: dict[str, dict[str, Key]] = {}
    for kind in FILE_KINDS:
        for path, key in keys_of(SPEC_CLASSES[kind]).items():
            if path != "kind":
                found.setdefault(path, {})[kind] = key
    sections: dict[str, list[tuple[str, dict[str, Key]]]] = {}
    for path, by_kind in found.items():
        sections.setdefault(path.partition(".")[0] if "." in path else "at the top", []).append((path, by_kind))
    text = ""
    for section, rows in sorted(sections.items(), key=lambda item: item[0] != "at the top"):
        cells = (
            (f"`{path}`", _facts(by_kind), next(iter(by_kind.values())).says, _of_kinds(by_kind))
            for path, by_kind in rows
        )
        text += f"\n## {section}\n\n{_table(('key', 'type and default', 'meaning', 'kinds'), cells)}"
    return text


def cluster_keys() -> str:
    """Return the keys of the section `cluster`."""
    rows = ((f"`{path}`", key.facts, key.says) for path, key in keys_of(Cluster, "cluster.").items())
    return _table(("key", "type and default", "meaning"), rows)


def variables() -> str:
    """Return the environment variables that `--env` applies."""
    rows = ((f"`{each.name}`", f"`{each.path}`", _of_kinds(each.kinds)) for each in VARIABLES)
    return _table(("variable", "key", "kinds"), rows)


def faults() -> str:
    """Return the faults that the monitor names."""
    return _table(("name", "meaning", "where to look"), ((f"`{each.name}`", each.what, each.look) for each in FAULTS))


def tool() -> str:
    """Return the help of each command of the tool."""
    program: Any = typer.main.get_command(app)
    context = type(program).context_class(program, info_name="opdctl")
    text = ""
    for group, names in GROUPS.items():
        text += f"\n## {group}\n"
        for name in names:
            command = program.get_command(context, name)
            own = type(command).context_class(command, info_name=name, parent=context)
            text += f"\n### opdctl {name}\n\n```text\n{command.get_help(own).rstrip()}\n```\n"
    return text


def launcher() -> str:
    """Return the help of `python -m opd.launch`."""
    return f"```text\n{parser().format_help().rstrip()}\n```\n"


TABLES: dict[str, Callable[[], str]] = {
    "keys": keys,
    "cluster keys": cluster_keys,
    "variables": variables,
    "faults": faults,
    "opdctl": tool,
    "opd.launch": launcher,
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page with its tables; mkdocs calls this for every page."""
    return re.sub(r"^<!-- (.+) -->$", lambda match: TABLES[match[1]](), markdown, flags=re.M)
