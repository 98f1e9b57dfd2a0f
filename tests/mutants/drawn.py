"""Mutants drawn by seed from the syntax of the files that keep a run's data: turned conditions, numbers, lost statements."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.mutant import Mutant

# File below src/opd: the tests that cover it, the fast ones first; the files with slow ones last.
FILES: dict[str, tuple[str, ...]] = {
    "runs/attempts.py": ("tests/runs/test_attempts.py", "tests/runs/test_lease.py", "tests/runs/test_run.py"),
    "runs/checkpoints.py": (
        "tests/runs/test_checkpoint_saving.py",
        "tests/runs/test_checkpoint_choice.py",
        "tests/runs/test_retention.py",
        "tests/runs/test_durability.py",
    ),
    "store/durable.py": ("tests/runs/test_durability.py",),
    "runs/identity.py": ("tests/runs/test_identity.py",),
    "runs/manifest.py": (
        "tests/runs/test_checkpoint_choice.py",
        "tests/runs/test_checkpoint_saving.py",
        "tests/runs/test_durability.py",
    ),
    "runs/metrics.py": ("tests/runs/test_metrics.py", "tests/runs/test_durability.py"),
    "runs/resume.py": ("tests/runs/test_checkpoint_choice.py", "tests/runs/test_retention.py"),
    "runs/shards.py": ("tests/runs/test_checkpoint_choice.py", "tests/runs/test_checkpoint_saving.py"),
    "store/base.py": ("tests/runs/test_store.py", "tests/runs/test_durability.py"),
    "store/local.py": (
        "tests/runs/test_store.py",
        "tests/runs/test_durability.py",
        "tests/runs/test_retention.py",
    ),
    "store/transfer.py": ("tests/runs/test_checkpoint_choice.py", "tests/runs/test_checkpoint_saving.py"),
    "runs/stream.py": ("tests/runs/test_stream.py",),
    "inputs/fetch.py": ("tests/runs/test_fetched.py", "tests/runs/s3/test_fetch.py"),
    "worker/background.py": ("tests/worker/test_background.py", "tests/worker/test_checkpointing.py"),
    "worker/checkpointing.py": ("tests/worker/test_checkpointing.py",),
    "compat/host_copies.py": ("tests/compat/test_host_copies.py",),
    "compat/plain_loads.py": ("tests/compat/test_plain_loads.py", "tests/worker/test_checkpointing.py"),
    "worker/step_metrics.py": (
        "tests/worker/test_step_metrics.py",
        "tests/worker/test_teacher_cache.py",
        "tests/worker/test_worker_invariance.py",
    ),
    "worker/teacher_cache.py": ("tests/worker/test_teacher_cache.py",),
    "store/remote.py": (
        "tests/runs/test_store.py",
        "tests/runs/s3/test_fetch.py",
        "tests/runs/s3/test_s3_store.py",
        "tests/runs/s3/test_faults.py",
        "tests/runs/s3/test_spec_endpoint.py",
    ),
    **dict.fromkeys(
        (
            "worker/opd_worker.py",
            "worker/reading.py",
            "worker/token_choice.py",
            "worker/student_task.py",
            "worker/teacher_phase.py",
        ),
        ("tests/worker/test_token_choice.py", "tests/worker/test_worker_invariance.py"),
    ),
}
_TURNED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
           ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"}  # fmt: skip


def draw(source: Path, num: int, *, seed: int) -> list[Mutant]:
    """`num` different mutants; a change of the sources changes only those of the changed places."""
    found = [mutant for file in FILES for mutant in _all(source, file)] if num else []
    return sorted(found, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.describe()}".encode()).digest())[:num]


def _all(source: Path, file: str) -> Iterator[Mutant]:
    text = (source / "opd" / file).read_bytes()  # as ast counts
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
            yield Mutant(
                what=numbered, file=file, old=old, new=new, tests=FILES[file], offset=len(text[:start].decode())
            )


def _places(node: ast.AST, place: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node with the function or class around it; without what is only logged or printed."""
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
    if isinstance(node, ast.If):
        return [old.replace(f"if {ast.unparse(node.test)}", "if True", 1)] if ast.unparse(node.test) in old else []
    return []


def _short(text: str) -> str:
    return " ".join(text.split())[:60]
