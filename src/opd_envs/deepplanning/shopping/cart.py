"""A cart as the benchmark's tools keep it, changed by pure functions: what a call refuses leaves nothing behind."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from opd.agent.tools import BadArguments, shown
from opd_envs.deepplanning.shopping.tables import WORTH, is_for_vips
from opd_envs.deepplanning.shopping.words import Labels


class Item(TypedDict):
    """A product in the cart."""

    product_id: str
    name: str
    quantity: int
    price: float


class UsedCoupon(TypedDict):
    """A coupon in the cart."""

    coupon_name: str
    quantity: int


Cart = dict[str, Any]
"""`items`, `summary` (total_items_count, total_price) and, once a coupon was used or where the case's own cart has it,
`used_coupons`."""


def begun(document: Mapping[str, Any] | None) -> Cart:
    """The cart of a case; None: the case has none."""
    cart = dict(document or {})
    items = cart.setdefault("items", [])
    cart.setdefault("summary", {"total_items_count": len(items), "total_price": 0.0})
    return cart


def from_state(state: str) -> Cart:
    """The cart of a conversation's state."""
    cart: Cart = json.loads(state)
    return cart


def to_state(cart: Cart) -> str:
    """The text that a conversation keeps."""
    return json.dumps(cart, ensure_ascii=False)


def with_product(cart: Cart, product: Mapping[str, Any], quantity: int, labels: Labels) -> Cart:
    """The cart with more of a product.

    Raises:
        BadArguments: more than its stock.
    """
    number, items = product["product_id"], list(cart["items"])
    at = _position(items, "product_id", number)
    held = 0 if at is None else items[at]["quantity"]
    stock = int(product.get("stock_quantity", 0))
    if held + quantity > stock:
        raise BadArguments(labels.no_stock.format(shown(number), stock, held, quantity))
    price = float(product.get("price", 0.0))
    if at is None:
        items.append(Item(product_id=number, name=product.get("name", ""), quantity=quantity, price=price))
    else:
        items[at] = items[at] | {"quantity": held + quantity, "price": price}
    return _without_discount(cart, items)


def without_product(cart: Cart, number: str, quantity: int, labels: Labels) -> Cart:
    """The cart with less of a product, or without it.

    Raises:
        BadArguments: it is not in the cart.
    """
    items = list(cart["items"])
    at = _position(items, "product_id", number)
    if at is None:
        raise BadArguments(labels.not_in_cart.format("product_id", shown(number)))
    items[at] = items[at] | {"quantity": items[at]["quantity"] - quantity}
    return _without_discount(cart, [item for item in items if item["quantity"] > 0])


def with_coupon(cart: Cart, name: str, quantity: int, user: Mapping[str, Any], labels: Labels) -> Cart:
    """The cart with a coupon used more often.

    Args:
        user: owns `coupons`, a number by name; `is_vip`.

    Raises:
        BadArguments: not owned so often, for VIPs only, or the cart's price is below what all coupons in use ask for.
    """
    used = list(cart.get("used_coupons", []))
    at = _position(used, "coupon_name", name)
    wanted = quantity + (0 if at is None else used[at]["quantity"])
    owned = int(user.get("coupons", {}).get(name, 0))
    if wanted > owned:
        raise BadArguments(labels.not_owned.format(shown(name), owned, wanted - quantity, quantity))
    if is_for_vips(name) and not user.get("is_vip", False):
        raise BadArguments(labels.no_vip.format(shown(name)))
    coupon = UsedCoupon(coupon_name=name, quantity=wanted)
    if at is None:
        used.append(coupon)
    else:
        used[at] = coupon
    price, needed = _price(cart["items"]), sum(WORTH[use["coupon_name"]].threshold * use["quantity"] for use in used)
    if price < needed:
        raise BadArguments(labels.too_cheap.format(price, needed))
    return _discounted(cart, used)


def without_coupon(cart: Cart, name: str, quantity: int, labels: Labels) -> Cart:
    """The cart with a coupon used less often, or without it.

    Raises:
        BadArguments: it is not used so often.
    """
    used = list(cart.get("used_coupons", []))
    at = _position(used, "coupon_name", name)
    if at is None:
        raise BadArguments(labels.not_in_cart.format("coupon_name", shown(name)))
    held = used[at]["quantity"]
    if held < quantity:
        raise BadArguments(labels.fewer_in_cart.format(shown(name), held, quantity))
    used[at] = UsedCoupon(coupon_name=name, quantity=held - quantity)
    return _discounted(cart, [coupon for coupon in used if coupon["quantity"] > 0])


def _without_discount(cart: Cart, items: list[Item]) -> Cart:
    """Coupons stay in the cart, but as in the benchmark its price is told without them until one is added or taken out."""
    price = round(sum(item["price"] * item["quantity"] for item in items), 2)
    return cart | {"items": items, "summary": cart["summary"] | _summary(items, price)}


def _discounted(cart: Cart, used: list[UsedCoupon]) -> Cart:
    discount = sum(WORTH[coupon["coupon_name"]].discount * coupon["quantity"] for coupon in used)
    price = round(max(0.0, _price(cart["items"]) - round(discount, 2)), 2)
    return cart | {"used_coupons": used, "summary": cart["summary"] | _summary(cart["items"], price)}


def _summary(items: Sequence[Item], price: float) -> dict[str, float]:
    return {"total_items_count": sum(item["quantity"] for item in items), "total_price": price}


def _price(items: Sequence[Item]) -> float:
    return round(sum((item["price"] * item["quantity"] for item in items), 0.0), 2)


def _position(entries: Sequence[Mapping[str, Any]], key: str, name: str) -> int | None:
    return next((i for i, entry in enumerate(entries) if entry[key] == name), None)
