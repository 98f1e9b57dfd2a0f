"""Mutants that a seed draws from the syntax of the rooms that keep a run's data and its update."""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {
    "batch": "tests/batch",
    "weights": "tests/weights",
    "losses": "tests/losses",
    "rollout": "tests/rollout",
    "runs": "tests/runs",
    "store": "tests/runs",
    "update": "tests/update",
}
"""Folder below src/opd -> folder of its tests."""
_NO_CPU = ("losses/cuda/", "losses/hopper/")
_TURNED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
           ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"}  # fmt: skip


def draw(source: Path, num: int, *, seed: int) -> list[Mutant]:
    """Return `num` different mutants; a change of a file changes only this file's share of them."""
    files = [str(path.relative_to(source / "opd")) for room in ROOMS for path in (source / "opd" / room).rglob("*.py")]
    found = [mutant for file in files if not file.startswith(_NO_CPU) for mutant in _all(source, file)]
    return sorted(found, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.describe()}".encode()).digest())[:num]


def _all(source: Path, file: str) -> Iterator[Mutant]:
    text = (source / "opd" / file).read_bytes()  # ast counts bytes
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    seen: Counter[str] = Counter()
    for place, node in _places(ast.parse(text), ""):
        if not isinstance(node, ast.expr | ast.stmt) or node.end_lineno is None or node.end_col_offset is None:
            continue
        start, end = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
        old = text[start:end].decode()
        for new in _changes(node, old):
            what = f"{place or 'module'}: {_short(old)} -> {_short(new)}"
            seen[what] += 1
            numbered = f"{what} ({seen[what]})" if seen[what] > 1 else what
            yield Mutant(what=numbered, file=file, old=old, new=new, offset=len(text[:start].decode()))


def _places(node: ast.AST, place: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield every node with its function or class, except the arguments of logs and prints."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and ast.unparse(child.func).startswith(("logger.", "print")):
            continue
        yield place, child
        inside = f"{place}.{child.name}".lstrip(".") if isinstance(child, ast.FunctionDef | ast.ClassDef) else place
        yield from _places(child, inside)


def _changes(node: ast.AST, old: str) -> list[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and (turned := _TURNED.get(type(node.ops[0]))):
        return [f"{ast.unparse(node.left)} {turned} {ast.unparse(node.comparators[0])}"]
    if isinstance(node, ast.BoolOp):
        other = " or " if isinstance(node.op, ast.And) else " and "
        return [other.join(f"({ast.unparse(value)})" for value in node.values)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [f"({ast.unparse(node.operand)})"]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        sign = "-" if isinstance(node.op, ast.Add) else "+"
        return [f"({ast.unparse(node.left)} {sign} {ast.unparse(node.right)})"]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return [str(node.value + 1)]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not old.startswith(("logger.", "print(")):
        return ["pass"]
    if isinstance(node, ast.Raise):
        return ["pass"]
    if isinstance(node, ast.Return) and node.value is not None and old != "return None":
        flag = node.value.value if isinstance(node.value, ast.Constant) else None
        return [f"return {not flag}" if isinstance(flag, bool) else "return None"]
    if isinstance(node, ast.If) and (test := ast.unparse(node.test)) in old:
        return [old.replace(f"if {test}", "if True", 1)]
    return []


def _short(text: str) -> str:
    return " ".join(text.split())[:60]
