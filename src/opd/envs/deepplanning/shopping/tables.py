"""The published layout of a shopping case: JSON documents, stored as they stand."""

from opd.envs.deepplanning.layout import DOCUMENT, Column, Table

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
