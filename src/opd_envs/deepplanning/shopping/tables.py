"""The published layout of a shopping case: JSON documents, stored as they stand."""

from __future__ import annotations

import re
from typing import NamedTuple

from opd_envs.deepplanning.layout import DOCUMENT, Column, Table


class Worth(NamedTuple):
    """In yuan."""

    discount: float
    threshold: float
    """The cart's price must reach it once for every use, summed over all coupons in use."""


NAMES = (
    "Cross-store: ¥30 off every ¥300",
    "Cross-store: ¥60 off every ¥500",
    "Cross-store: ¥120 off every ¥900",
    "Cross-store: ¥200 off every ¥1,200",
    "Cross-store: ¥300 off every ¥1,500",
    "Same-brand: ¥25 off every ¥200",
    "Same-brand: ¥60 off every ¥400",
    "Same-brand: ¥180 off every ¥1,000",
    "Same-brand: ¥300 off every ¥1,200",
    "VIP: ¥200 off every ¥1,000",
)
_WORTH = re.compile(r".*: ¥([\d,]+) off every ¥([\d,]+)")


def _worth(name: str) -> Worth:
    found = _WORTH.fullmatch(name)
    assert found is not None, name
    discount, threshold = (float(part.replace(",", "")) for part in found.groups())
    return Worth(discount, threshold)


WORTH = {name: _worth(name) for name in NAMES}


def is_for_vips(name: str) -> bool:
    """Whether only a user with `is_vip` may use it."""
    return name.startswith("VIP:")


PRODUCT_ID = "product_id"


def _one(name: str, file: str) -> Table:
    return Table(name, file, (Column(DOCUMENT),), (), ())


PRODUCTS = Table("products", "products.jsonl", (Column(PRODUCT_ID), Column(DOCUMENT)), (PRODUCT_ID,), (PRODUCT_ID,))
USERS = _one("users", "user_info.json")
CARTS = _one("carts", "cart.json")
"""The cart with which a conversation begins."""
ANSWERS = _one("answers", "validation_cases.json")
"""The right cart; no tool reads it."""
TABLES = (PRODUCTS, USERS, CARTS, ANSWERS)
