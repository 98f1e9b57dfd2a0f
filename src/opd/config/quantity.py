"""Kubernetes quantities as numbers."""

from __future__ import annotations

import re
from decimal import Decimal

GIB = 2**30
_PARTS = re.compile(r"([+-]?[0-9.]+)(?:[eE]([+-]?[0-9]+)|([a-zA-Z]*))")
_UNITS = {
    "": Decimal(1),
    **{unit: Decimal(1000) ** -power for power, unit in enumerate("mun", start=1)},
    "k": Decimal(1000),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("MGTPE", start=2)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}


def number(quantity: int | str) -> Decimal:
    """A quantity in its base unit: cores, bytes. An experiment's are written as `QUANTITY_PATTERN` says (`500m`, `1.5`, `2Gi`),
    a server's in any way that Kubernetes knows."""
    match = _PARTS.fullmatch(str(quantity))
    if match is None or match[3] not in (None, *_UNITS):
        raise ValueError(f"{quantity!r} is no quantity of Kubernetes")
    return Decimal(match[1]) * (Decimal(10) ** int(match[2]) if match[2] else _UNITS[match[3]])
