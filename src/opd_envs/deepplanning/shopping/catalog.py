"""A shopping case as the tools see it: its products, its user and the conversation's cart."""

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from opd_envs.deepplanning import database
from opd_envs.deepplanning.database import Case, Database
from opd_envs.deepplanning.layout import DOCUMENT, Table
from opd_envs.deepplanning.readers import parsed
from opd_envs.deepplanning.shopping import cart
from opd_envs.deepplanning.shopping.cart import Cart
from opd_envs.deepplanning.shopping.search import Index
from opd_envs.deepplanning.shopping.tables import ANSWERS, CARTS, PRODUCT_ID, PRODUCTS, USERS

Product = Mapping[str, Any]
_MAX_CATALOGS = 16
"""Kept parsed by a process; a conversation's next call finds its own."""


class Catalog:
    """What no conversation changes."""

    def __init__(self, case: Case) -> None:
        self.products: list[Product] = [parsed(row[DOCUMENT]) for row in case.rows(PRODUCTS)]
        self.by_id = {product[PRODUCT_ID]: product for product in self.products}
        """Of products of the same id the last one counts, as in the benchmark."""
        self.user = _only(case, USERS)
        self.first_cart = first_cart(case)

    @cached_property
    def index(self) -> Index:
        return Index(self.products)


class Visit:
    """A catalog and one conversation's cart."""

    def __init__(self, catalog: Catalog, state: str | None = None) -> None:
        self.catalog = catalog
        self._state = state

    def with_state(self, state: str | None) -> "Visit":
        """See `opd.agent.tools.Toolset.keeps_state`."""
        return Visit(self.catalog, state)

    @property
    def cart(self) -> Cart:
        """The conversation's cart; before it changed, the case's."""
        return self.catalog.first_cart if self._state is None else cart.from_state(self._state)


class ShopDatabase:
    """The imported database behind parsed catalogs; for one thread."""

    def __init__(self, opened: Database) -> None:
        self._opened = opened
        self._catalogs: OrderedDict[str, Catalog] = OrderedDict()

    def in_case(self, name: str) -> Visit:
        """A case at the beginning of a conversation.

        Raises:
            KeyError: the database has no such case.
        """
        if name not in self._catalogs:
            self._catalogs[name] = Catalog(self._opened.in_case(name))
            if len(self._catalogs) > _MAX_CATALOGS:
                self._catalogs.popitem(last=False)
        self._catalogs.move_to_end(name)
        return Visit(self._catalogs[name])

    def close(self) -> None:
        """Closes the connections."""
        self._opened.close()


def open_database(folder: str | Path) -> ShopDatabase:
    """See `opd_envs.deepplanning.database.open_database`."""
    return ShopDatabase(database.open_database(folder))


def first_cart(case: Case) -> Cart:
    """The cart with which a conversation begins."""
    return cart.begun(_only(case, CARTS))


def right_cart(case: Case) -> Mapping[str, Any] | None:
    """The document that says what the right cart of a case holds; None where the case has none."""
    return _only(case, ANSWERS)


def _only(case: Case, table: Table) -> Mapping[str, Any] | None:
    return next((parsed(row[DOCUMENT]) for row in case.rows(table)), None)
