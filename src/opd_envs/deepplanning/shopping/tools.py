"""The shopping tools with the published names, arguments and reply keys; what a tool answers is as the benchmark's own does.

Descriptions, and what refused calls are told, are in our own words (`opd_envs.deepplanning.shopping.words`).
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from opd.agent.tools import Arguments, BadArguments, Changed, Reply, Tool, shown
from opd_envs.deepplanning.shopping import cart
from opd_envs.deepplanning.shopping.catalog import Catalog, Product, Visit
from opd_envs.deepplanning.shopping.tables import PRODUCT_ID, WORTH
from opd_envs.deepplanning.shopping.transport import delivery_days, province
from opd_envs.deepplanning.shopping.words import DESCRIPTIONS, LABELS, Labels
from opd_envs.deepplanning.words import described_tool
from opd_envs.travel.entries import Language

Text = Annotated[str, Field(max_length=200)]
Texts = Annotated[list[Text], Field(max_length=10_000)]
Quantity = Annotated[int, Field(ge=1, le=1_000_000)]
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
}


def _keys(*names: str) -> Any:
    """A text for which the schema names some values; the tools, as the benchmark's, take any that products have."""
    return Field(max_length=200, json_schema_extra={"enum": list(names)})


class Query(Arguments):
    """Arguments of `search_products`."""

    query: Text
    limit: Annotated[int, Field(ge=0)] = 20


class Among(Arguments):
    """What all filters and sorting take."""

    product_ids: Texts | None = None


class Brands(Among):
    """Arguments of `filter_by_brand`."""

    brand_names: Texts


class Colors(Among):
    """Arguments of `filter_by_color`."""

    colors: Texts


class Sizes(Among):
    """Arguments of `filter_by_size`."""

    sizes: Texts


class Coupons(Among):
    """Arguments of `filter_by_applicable_coupons`."""

    coupon_names: Texts


class Range(Among):
    """Arguments of `filter_by_range`."""

    condition_key: Annotated[
        str,
        _keys(
            "price",
            "stock_quantity",
            "sales_volume.monthly",
            "sales_volume.total",
            "rating.average_score",
            "rating.total_reviews",
        ),
    ]
    operator: Literal[">", ">=", "<", "<=", "=="]
    value: float


class Sorting(Among):
    """Arguments of `sort_products`."""

    sort_by: Annotated[
        str,
        _keys("price", "sales_volume.monthly", "sales_volume.total", "rating.average_score", "stock_quantity", "name"),
    ]
    order: Annotated[str, _keys("asc", "desc")] = "desc"


class Ids(Arguments):
    """Arguments of `get_product_details`."""

    product_ids: Texts


class Delivery(Arguments):
    """Arguments of `calculate_transport_time`; the provider is in the schema and changes nothing, as in the benchmark."""

    product_id: Text
    destination_address: Text
    provider: Text | None = None


class User(Arguments):
    """Arguments of `get_user_info`."""

    user_id: Text | None = None


class ProductQuantity(Arguments):
    """Arguments of the tools that put products into the cart and take them out."""

    product_id: Text
    quantity: Quantity = 1


class CouponQuantity(Arguments):
    """Arguments of the tools that put coupons into the cart and take them out."""

    coupon_name: Text
    quantity: Quantity = 1


class Nothing(Arguments):
    """Arguments of `get_cart_info`."""


def _search(visit: Visit, arguments: Query, labels: Labels) -> Reply:
    catalog = visit.catalog
    return {"product_ids": _ids(catalog.products[i] for i in catalog.index.found(arguments.query)[: arguments.limit])}


def _with_value(field: str, argument: str, visit: Visit, arguments: Among, labels: Labels) -> Reply:
    """Products of which a field is one of the argument's texts, whatever their case."""
    wanted = {value.lower() for value in getattr(arguments, argument)}
    return _filtered(visit, arguments, labels, lambda product: _lower(product.get(field, "")) in wanted)


def _lower(value: Any) -> str | None:
    return value.lower() if isinstance(value, str) else None


def _with_coupons(visit: Visit, arguments: Coupons, labels: Labels) -> Reply:
    for name in arguments.coupon_names:
        _check_coupon(name, "coupon_names", labels)
    wanted = set(arguments.coupon_names)
    return _filtered(
        visit,
        arguments,
        labels,
        lambda product: bool(wanted) and wanted.issubset(product.get("applicable_coupons", ())),
    )


def _in_range(visit: Visit, arguments: Range, labels: Labels) -> Reply:
    compare, key = _COMPARISONS[arguments.operator], arguments.condition_key

    def fits(product: Product) -> bool:
        value = _value(product, key)
        if value is None:
            raise BadArguments(labels.no_key.format("condition_key", shown(key)))
        try:
            return compare(float(value), arguments.value)
        except (TypeError, ValueError, OverflowError):
            return False

    return _filtered(visit, arguments, labels, fits)


def _filtered(visit: Visit, arguments: Among, labels: Labels, fits: Callable[[Product], bool]) -> Reply:
    found = _among(visit.catalog, arguments.product_ids)
    if arguments.product_ids:
        for number in arguments.product_ids:
            _product(visit.catalog, number, "product_ids", labels)
    return {"filtered_products_ids": _ids(product for product in found if fits(product))}


def _sorted(visit: Visit, arguments: Sorting, labels: Labels) -> Reply:
    key, order = arguments.sort_by.lower(), arguments.order.lower()
    if order not in ("asc", "desc"):
        raise BadArguments(labels.no_order.format(shown(arguments.order)))
    found = _among(visit.catalog, arguments.product_ids)
    if found and _value(found[0], key) is None:
        raise BadArguments(labels.no_key.format("sort_by", shown(key)))
    last = -math.inf if order == "desc" else math.inf

    def rank(product: Product) -> Any:
        value = _value(product, key)
        return value.lower() if isinstance(value, str) else value if isinstance(value, int | float) else last

    try:
        return {"sorted_product_ids": _ids(sorted(found, key=rank, reverse=order == "desc"))}
    except TypeError as error:  # texts beside numbers
        raise BadArguments(labels.no_key.format("sort_by", shown(key))) from error


def _details(visit: Visit, arguments: Ids, labels: Labels) -> Reply:
    return {"products": _among(visit.catalog, arguments.product_ids) if arguments.product_ids else []}


def _delivery(visit: Visit, arguments: Delivery, labels: Labels) -> Reply:
    product = _product(visit.catalog, arguments.product_id, "product_id", labels)
    shipping = product.get("shipping_info", {})
    origin = _province("shipping_info.origin", shipping.get("origin") or "", labels)
    destination = _province("destination_address", arguments.destination_address, labels)
    return {
        "product_id": arguments.product_id,
        "origin": shipping["origin"],
        "destination": arguments.destination_address,
        "estimated_delivery_days": delivery_days(origin, destination, shipping.get("provider", "")),
    }


def _province(argument: str, address: str, labels: Labels) -> str:
    found = province(address)
    if found is None:
        raise BadArguments(labels.no_province.format(argument, shown(address)))
    return found


def _user(visit: Visit, arguments: User, labels: Labels) -> Reply:
    user = visit.catalog.user or {}
    if arguments.user_id and arguments.user_id != user.get("user_id"):
        raise BadArguments(labels.no_user.format(shown(arguments.user_id)))
    return user


def _cart(visit: Visit, arguments: Nothing, labels: Labels) -> Reply:
    return visit.cart


def _add_product(visit: Visit, arguments: ProductQuantity, labels: Labels) -> Changed:
    product = _product(visit.catalog, arguments.product_id, "product_id", labels)
    return _changed(cart.with_product(visit.cart, product, arguments.quantity, labels))


def _delete_product(visit: Visit, arguments: ProductQuantity, labels: Labels) -> Changed:
    _product(visit.catalog, arguments.product_id, "product_id", labels)
    return _changed(cart.without_product(visit.cart, arguments.product_id, arguments.quantity, labels))


def _add_coupon(visit: Visit, arguments: CouponQuantity, labels: Labels) -> Changed:
    _check_coupon(arguments.coupon_name, "coupon_name", labels)
    user = visit.catalog.user or {}
    return _changed(cart.with_coupon(visit.cart, arguments.coupon_name, arguments.quantity, user, labels))


def _delete_coupon(visit: Visit, arguments: CouponQuantity, labels: Labels) -> Changed:
    _check_coupon(arguments.coupon_name, "coupon_name", labels)
    return _changed(cart.without_coupon(visit.cart, arguments.coupon_name, arguments.quantity, labels))


def _changed(changed: cart.Cart) -> Changed:
    return Changed(changed, cart.to_state(changed))


def _ids(products: Iterable[Product]) -> list[str]:
    return [product[PRODUCT_ID] for product in products]


def _among(catalog: Catalog, ids: Sequence[str] | None) -> Sequence[Product]:
    """The products of these ids in their order, without those that are none; all where there are no ids."""
    return [catalog.by_id[number] for number in ids if number in catalog.by_id] if ids else catalog.products


def _product(catalog: Catalog, number: str, argument: str, labels: Labels) -> Product:
    if number not in catalog.by_id:
        raise BadArguments(labels.no_product.format(argument, shown(number)))
    return catalog.by_id[number]


def _check_coupon(name: str, argument: str, labels: Labels) -> None:
    if name not in WORTH:
        raise BadArguments(labels.no_coupon.format(argument, shown(name)))


def _value(product: Product, path: str) -> Any:
    """What stands at a path such as `sales_volume.monthly`; None where nothing does."""
    found: Any = product
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


_TOOLS: tuple[tuple[str, type[Arguments], Callable[..., Reply | Changed]], ...] = (
    ("search_products", Query, _search),
    ("filter_by_brand", Brands, partial(_with_value, "brand", "brand_names")),
    ("filter_by_color", Colors, partial(_with_value, "color", "colors")),
    ("filter_by_size", Sizes, partial(_with_value, "size", "sizes")),
    ("filter_by_applicable_coupons", Coupons, _with_coupons),
    ("filter_by_range", Range, _in_range),
    ("sort_products", Sorting, _sorted),
    ("get_product_details", Ids, _details),
    ("calculate_transport_time", Delivery, _delivery),
    ("get_user_info", User, _user),
    ("add_product_to_cart", ProductQuantity, _add_product),
    ("delete_product_from_cart", ProductQuantity, _delete_product),
    ("get_cart_info", Nothing, _cart),
    ("add_coupon_to_cart", CouponQuantity, _add_coupon),
    ("delete_coupon_from_cart", CouponQuantity, _delete_coupon),
)
"""In the order of the published schema."""


def tools_in(language: Language) -> dict[str, Tool]:
    """The tools described in a language, in which they also say what they refuse."""
    return {
        name: described_tool(name, DESCRIPTIONS[language][name], arguments, partial(run, labels=LABELS[language]))
        for name, arguments, run in _TOOLS
    }
