"""Labels of the run's paths without numbers, and the files of sealed steps."""

import re

from tests.simulator.disk import Node

STEP = re.compile(r"/global_step_(\d+)/")
# Where a store in a folder keeps its runs.
STORED = "/store/"


def sealed_files(folder: Node, path: tuple[str, ...]) -> list[tuple[str, Node]]:
    """The files of sealed steps below a folder of a disk."""
    found = []
    for name, node in folder.names.items():
        if not node.is_folder:
            if node.data and STEP.search("/" + "/".join(path) + "/"):
                found.append(("/" + "/".join((*path, name)), node))
        elif not name.startswith(".") and (STEP.fullmatch(f"/{name}/") is None or "COMPLETE" in node.names):
            found += sealed_files(node, (*path, name))
    return found


_KINDS_OF_NAMES = (
    (re.compile(r"\.opd-tmp-.*"), "temporary"),
    (re.compile(r"\.probe-.*"), "probe"),
    (re.compile(r"\..*\.part-.*"), "partial download"),
    (re.compile(r"global_step_\d+"), "step folder"),
    (re.compile(r"\.saving-\d+"), "staging"),
    (re.compile(r"[a-z_]+_world_size_.*"), "shard"),
    (re.compile(r"\d{4,}"), "attempt folder"),
    (re.compile(r"[0-9a-f]{32}\.(.*)"), r"stop \1"),
    (re.compile(r"metrics\.jsonl.*"), "metrics"),
    (re.compile(r"all|-?\d+"), "incoming"),
)


def _kind_of(name: str) -> str:
    for pattern, kind in _KINDS_OF_NAMES:
        if pattern.fullmatch(name):
            return pattern.sub(kind, name)
    return name


LABELS: dict[tuple[str, ...], str] = {}


def label_of(path: tuple[str, ...]) -> str:
    """Return the label of a path, without its numbers."""
    label = LABELS.get(path)
    if label is None:
        label = _make_label(path) if path else "root"
        if len(LABELS) < 20_000:  # temporary names never come again
            LABELS[path] = label
    return label


def _make_label(path: tuple[str, ...]) -> str:
    label = _kind_of(path[-1])
    if label in ("temporary", "partial download", "probe"):
        label += f" in {_kind_of(path[-2])}"
    is_staged = any(part.startswith(".saving-") for part in path[-4:-1])
    return f"staged {label}" if is_staged else label
