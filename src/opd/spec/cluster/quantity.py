"""Kubernetes quantities as numbers."""

from __future__ import annotations

import re
from decimal import Decimal

GIB = 2**30
_PARTS = re.compile(r"([0-9.]+)([a-zA-Z]*)")
_UNITS = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(1000),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("MGTP", start=2)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTP", start=1)},
}


def number(quantity: int | str) -> Decimal:
    """A quantity that `QUANTITY_PATTERN` allows (`500m`, `1.5`, `2Gi`) in its base unit: cores, bytes."""
    match = _PARTS.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is no quantity of Kubernetes")
    return Decimal(match[1]) * _UNITS[match[2]]
