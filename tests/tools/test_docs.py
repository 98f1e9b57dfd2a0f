"""The pages: links that resolve, a bound of words, experiments that load, and the table of metrics against the code."""

import ast
import re
import subprocess
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

import pytest
import yaml

from opd.experiment import load_text

ROOT = Path(__file__).resolve().parents[2]
METRICS = ROOT / "docs/reference/metrics.md"
MAX_WORDS, MAX_README_WORDS, MAX_TOP_WORDS = 35_000, 300, 900
# A piece of an experiment on a page is put over this one.
WHOLE = "{kind: opd, model: {path: a}, teacher: {path: b}, data: {train: [a.parquet], val: [b.parquet]}, trainer: {gpus_per_node: 1}}"
# First part of a metric's name; other texts with a slash are paths.
GROUPS = (
    "opd",
    "actor",
    "critic",
    "agent",
    "rollout",
    "reward",
    "data",
    "training",
    "timing_s",
    "perf",
    "sft",
    "val-aux",
)
NO_METRIC = re.compile(r"_world_size_|/$")


def pages():
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for path in listed.stdout.split("\0") if path]


def anchors(text):
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"(?ms)^```.*?^```", "", text), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", pages())
def test_every_link_of_a_page_resolves(path):
    text = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", (ROOT / path).read_text())
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if "://" in target:
            continue
        found = (ROOT / path).parent / file if file else ROOT / path
        if not found.exists() or (anchor and anchor not in anchors(found.read_text())):
            broken.append(target)
    assert broken == []


def test_pages_stay_short():
    words = {path: len((ROOT / path).read_text().split()) for path in pages()}
    limits = {path: MAX_README_WORDS if "/" in path else MAX_TOP_WORDS for path in words if path.endswith("README.md")}
    assert {path: words[path] for path, limit in limits.items() if words[path] > limit} == {}
    assert sum(words.values()) <= MAX_WORDS


def over(tree, piece):
    """Return a tree with a piece put over it."""
    if not isinstance(piece, dict):
        return piece
    tree = tree if isinstance(tree, dict) else {}
    return tree | {key: over(tree.get(key), value) for key, value in piece.items()}


@pytest.mark.parametrize("path", ["README.md", *(path for path in pages() if path.startswith("docs/"))])
def test_every_experiment_on_a_page_loads(path):
    for block in re.findall(r"(?ms)^```yaml\n(.*?)^```", (ROOT / path).read_text()):
        piece = yaml.safe_load(block)
        if "apiVersion" in piece or "matrix" in piece:
            continue
        whole = {} if "kind" in piece else yaml.safe_load(WHOLE)
        if "teachers" in piece:
            del whole["teacher"]
        if "agent" in piece and whole:
            whole["kind"] = "opd-agent"
        load_text(yaml.safe_dump(over(whole, piece)))


def documented():
    """Return the patterns of the first column of all tables, with `{a,b}` spelled out."""
    for cell in re.findall(r"^\| (`.+?) \|", METRICS.read_text(), flags=re.M):
        for name in re.findall(r"`([^`]+)`", cell):
            parts = re.split(r"\{([^}]*)\}", name)
            choices = [part.split(",") if place % 2 else [part] for place, part in enumerate(parts)]
            yield from ("".join(each) for each in product(*choices))


def logged():
    """Return names of metrics in texts of the code, with `*` for each value that a run fills in."""
    for file in sorted((ROOT / "src/opd").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)
            else:
                text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if re.fullmatch(rf"({'|'.join(GROUPS)})/[\w/@*-]*", text) and not NO_METRIC.search(text):
                yield text


def test_the_page_of_metrics_has_every_metric_that_the_code_names():
    patterns = set(documented())

    def is_known(name):
        return any(fnmatchcase(name, one) or fnmatchcase(one, f"*{name}*") for one in patterns)

    assert {name for name in logged() if not is_known(name)} == set()
