"""What a run trains and who teaches it, in words, from its spec as the store has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def trained(spec: Mapping[str, Any]) -> str:
    """`LoRA, rank 8, alpha 16 (all-linear)` or `all weights`; empty of a kind that trains nothing."""
    if not isinstance(spec.get("actor"), Mapping):
        return ""
    lora = _section(_section(spec, "model"), "lora")
    if not lora:
        return "all weights"
    modules = lora.get("target_modules", "")
    where = ", ".join(map(str, modules)) if isinstance(modules, list) else str(modules)
    return f"LoRA, rank {lora.get('rank', '?')}, alpha {lora.get('alpha', '?')}" + (f" ({where})" if where else "")


def teachers(spec: Mapping[str, Any]) -> list[str]:
    """`NAME: path` of each of several teachers, or the path of one; behind them the blends that `route` names."""
    several = _section(spec, "teachers")
    found = [f"{name}: {_path(several, name)}" for name in sorted(several)]
    if _section(spec, "teacher"):
        found.insert(0, _path(spec, "teacher"))
    blends = _section(_section(spec, "route"), "blends")
    for name in sorted(blends):
        blend = _section(blends, name)
        parts = " + ".join(f"{weight} {of}" for of, weight in sorted(_section(blend, "weights").items()))
        found.append(f"{name}: {blend.get('form', 'mixture')} of {parts}")
    return found


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of the spec; empty where there is none, or no map: whoever writes into a store wrote it."""
    part = tree.get(name)
    return part if isinstance(part, Mapping) else {}


def _path(tree: Mapping[str, Any], name: str) -> str:
    return str(_section(tree, name).get("path", "–"))
