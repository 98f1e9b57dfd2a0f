"""What a run's records must look like before tables and pages rely on it: what does not is left out and named.

Anyone who can write into a store can write a record there: no record of one run may break a table over many.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from opdctl.redact import redact_tree

# Numbers that an evaluation may leave out.
_OPTIONAL: dict[str, Any] = {"standard_error": None, "num_dropped": 0}
_EVALUATION = {"num_problems": int, "num_samples": int, "mean": float, "pass_at": list, "maj_at": list}


def checked_spec(spec: Mapping[str, Any] | None, problems: list[str]) -> dict[str, Any]:
    """The spec without secrets; without a `seed` that is no integer and a `trainer` that is no mapping."""
    found: dict[str, Any] = redact_tree(spec or {})
    for name, kind in (("seed", int), ("trainer", dict)):
        if name in found and not _is(found[name], kind):
            problems.append(f"spec.json: {name} = {str(found.pop(name))[:60]!r} is left out: must be {_A[kind]}")
    return found


def checked_result(result: Mapping[str, Any] | None, problems: list[str]) -> dict[str, Any] | None:
    """The result without secrets; its `eval` holds only data sets with all their numbers."""
    if result is None:
        return None
    found: dict[str, Any] = redact_tree(result)
    sets = found.pop("eval", {})
    if not isinstance(sets, dict):
        problems.append(f"result.json: eval is left out: must be an object, not {type(sets).__name__}")
        return found
    kept = {
        name: _OPTIONAL | values | {"numbers": _numbers(name, values.get("numbers", {}), problems)}
        for name, values in sets.items()
        if _is_evaluation(values)
    }
    if len(kept) < len(sets):
        left = ", ".join(sorted(sets.keys() - kept.keys()))
        problems.append(f"result.json: eval of {left} is left out: must hold the numbers {', '.join(_EVALUATION)}")
    return found | ({"eval": kept} if kept else {})


def _numbers(source: str, numbers: Any, problems: list[str]) -> dict[str, Any]:
    """Return a data set's further numbers, those that are whole."""
    found = numbers if isinstance(numbers, dict) else {"": numbers}
    kept = {name: item for name, item in found.items() if _is_number(item)}
    if len(kept) < len(found):
        left = ", ".join(map(repr, sorted(found.keys() - kept.keys())))
        problems.append(f"result.json: of {source} the numbers {left} are left out: must hold mean and num_answers")
    return kept


def _is_number(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and _is(item.get("mean"), float)
        and _is(item.get("num_answers"), int)
        and (item.get("standard_error") is None or _is(item["standard_error"], float))
    )


_A = {int: "an integer", float: "a number", list: "a list of numbers", dict: "an object"}


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return False
    if kind is float and isinstance(value, int):
        return abs(value) <= sys.float_info.max  # JSON's integers have no largest
    return isinstance(value, kind)


def _is_evaluation(values: Any) -> bool:
    return (
        isinstance(values, dict)
        and all(_is(values.get(name), kind) for name, kind in _EVALUATION.items())
        and all(values[name] and all(_is(item, float) for item in values[name]) for name in ("pass_at", "maj_at"))
        and _is(values.get("num_dropped", 0), int)
        and (values.get("standard_error") is None or _is(values["standard_error"], float))
    )
