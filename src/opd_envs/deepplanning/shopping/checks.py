"""Whether a shopping case is as the tools and the scores read it: every field by its path, and what one document says of another."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from opd_envs.deepplanning.layout import DOCUMENT, CaseRows, Layout, Surprises
from opd_envs.deepplanning.readers import parsed
from opd_envs.deepplanning.shopping.search import FIELDS
from opd_envs.deepplanning.shopping.tables import ANSWERS, CARTS, NAMES, PRODUCT_ID, PRODUCTS, TABLES, USERS
from opd_envs.deepplanning.shopping.transport import CARRIERS, province

ASKED_QUERY = "query"
_MAX_SHOWN_CHARS = 60


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_coupons(value: Any) -> bool:
    """Numbers by coupon, as a user owns them and a right cart uses them."""
    return isinstance(value, dict) and all(_is_whole(number) for number in value.values())


def _are_objects(value: Any, fields: Mapping[str, Callable[[Any], bool]]) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, dict) and all(holds(entry.get(name)) for name, holds in fields.items()) for entry in value
    )


class _Field(NamedTuple):
    """A value of a document, and what it must be."""

    path: str
    holds: Callable[[Any], bool]
    rule: str
    breaks_tools: bool = False
    """Another value is a fault: a tool or the score would stumble over it. Else it is a note."""
    required: bool = True


def _fields(paths: Iterable[str], holds: Callable[[Any], bool], rule: str, **more: bool) -> list[_Field]:
    return [_Field(path, holds, rule, **more) for path in paths]


_OBJECT, _TEXT, _NUMBER, _WHOLE = "must be an object", "must be a text", "must be a number", "must be a whole number"
_PRODUCT = [
    *_fields(["name"], _is_text, _TEXT, breaks_tools=True),
    *_fields(["price"], lambda value: _is_number(value) and value >= 0, "must be a number from 0", breaks_tools=True),
    *_fields(["stock_quantity"], _is_whole, "must be a whole number from 0", breaks_tools=True),
    *_fields(
        ["applicable_coupons"],
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
        "must be a list of texts",
        breaks_tools=True,
    ),
    *_fields(["applicable_coupons"], lambda value: set(value) <= set(NAMES), "must hold known coupons only"),
    *_fields(["shipping_info"], lambda value: isinstance(value, dict), _OBJECT, breaks_tools=True),
    *_fields(["shipping_info.origin"], _is_text, _TEXT),
    *_fields(["shipping_info.origin"], lambda value: province(value) is not None, "must name a known province"),
    *_fields(["shipping_info.provider"], _is_text, _TEXT, breaks_tools=True),
    *_fields(["shipping_info.provider"], lambda value: value.lower() in CARRIERS, "must be a known carrier"),
    *_fields(["brand", "color", "size"], _is_text, _TEXT),
    *_fields(
        set(FIELDS) - {"brand", "color", "size", "name"}, lambda value: isinstance(value, str), _TEXT, required=False
    ),
    *_fields(
        ["sales_volume.monthly", "sales_volume.total", "rating.average_score", "rating.total_reviews"],
        _is_number,
        _NUMBER,
    ),
]
_USER = [
    *_fields(["user_id"], _is_text, _TEXT),
    *_fields(["is_vip"], lambda value: isinstance(value, bool), "must be true or false"),
    *_fields(["coupons"], _are_coupons, "must hold whole numbers by coupon", breaks_tools=True, required=False),
    *_fields(["coupons"], lambda value: set(value) <= set(NAMES), "must hold known coupons only", required=False),
]
_CART = [
    *_fields(
        ["items"],
        lambda value: _are_objects(value, {PRODUCT_ID: _is_text, "quantity": _is_whole, "price": _is_number}),
        f"must be a list of objects with {PRODUCT_ID}, quantity and price",
        breaks_tools=True,
        required=False,
    ),
    *_fields(
        ["used_coupons"],
        lambda value: _are_objects(value, {"coupon_name": NAMES.__contains__, "quantity": _is_whole}),
        "must be a list of objects with coupon_name, a known one, and quantity",
        breaks_tools=True,
        required=False,
    ),
    *_fields(["items", "used_coupons"], lambda value: value == [], "is not empty at the beginning", required=False),
    *_fields(["summary"], lambda value: isinstance(value, dict), _OBJECT, breaks_tools=True, required=False),
]
_ANSWER = [
    *_fields(
        ["ground_truth_products"],
        lambda value: _are_objects(value, {PRODUCT_ID: _is_text}),
        f"must be a list of objects with {PRODUCT_ID}",
        breaks_tools=True,
    ),
    *_fields(
        ["ground_truth_coupons"], _are_coupons, "must hold whole numbers by coupon", breaks_tools=True, required=False
    ),
    *_fields(["query"], _is_text, _TEXT),
]
_FIELDS = {PRODUCTS: _PRODUCT, USERS: _USER, CARTS: _CART, ANSWERS: _ANSWER}


def check(where: str, rows: CaseRows, surprises: Surprises) -> None:
    """Looks at every document of a case."""
    for table in TABLES:
        for line, row in rows[table.name]:
            document = parsed(row[DOCUMENT])
            for field in _FIELDS[table]:
                _check_field(document, field, table.file, f"{where} line {line}", surprises)
    _check_answer(where, rows, surprises)


def check_asked(where: str, rows: CaseRows, asked: Iterable[tuple[str, str]], surprises: Surprises) -> None:
    """Whether the right cart is of the query that is asked."""
    for field, text in asked:
        for document in _documents(rows, ANSWERS.name):
            if document.get(field, text) != text:
                surprises.note(f"{ANSWERS.file}: {field} is not that of the query file", f"{where}: {_shown(text)}")


def _check_field(document: Mapping[str, Any], field: _Field, file: str, at: str, surprises: Surprises) -> None:
    found: Any = document
    for name in field.path.split("."):
        if not isinstance(found, dict) or name not in found:
            if field.required:
                say = surprises.fault if field.breaks_tools else surprises.note
                say(f"{file}: {field.path} is missing", at)
            return
        found = found[name]
    try:
        holds = field.holds(found)
    except (TypeError, AttributeError):  # another type, which a rule of its own names
        return
    if not holds:
        say = surprises.fault if field.breaks_tools else surprises.note
        say(f"{file}: {field.path} {field.rule}", f"{at}: {_shown(found)}")


def _check_answer(where: str, rows: CaseRows, surprises: Surprises) -> None:
    """Whether the right cart can be filled: from the case's products and the user's coupons."""
    known = {row[PRODUCT_ID] for _, row in rows[PRODUCTS.name]}
    owned: dict[str, Any] = {}
    for user in _documents(rows, USERS.name):
        owned = user.get("coupons", {})
    for answer in _documents(rows, ANSWERS.name):
        products, coupons = answer.get("ground_truth_products", []), answer.get("ground_truth_coupons") or {}
        if not isinstance(products, list) or not isinstance(coupons, dict) or not isinstance(owned, dict):
            return
        ids = [product.get(PRODUCT_ID) for product in products if isinstance(product, dict)]
        if not ids and not coupons:
            surprises.note(f"{ANSWERS.file}: the right cart is empty", where)
        if len(set(ids)) < len(ids) or any(
            product.get("quantity", 1) != 1 for product in products if isinstance(product, dict)
        ):
            surprises.note(
                f"{ANSWERS.file}: a product of the right cart is there twice, or with a quantity; no score asks for more than one",
                where,
            )
        for number in ids:
            if number not in known:
                surprises.note(f"{ANSWERS.file}: a product of the right cart is missing", f"{where}: {_shown(number)}")
        for name, number in coupons.items():
            if name not in NAMES:
                surprises.note(f"{ANSWERS.file}: a coupon of the right cart is none", f"{where}: {_shown(name)}")
            elif _is_whole(number) and number > owned.get(name, 0):
                surprises.note(
                    f"{ANSWERS.file}: the user does not own the right cart's coupons", f"{where}: {_shown(name)}"
                )


def _documents(rows: CaseRows, table: str) -> Iterator[dict[str, Any]]:
    for _, row in rows[table]:
        yield parsed(row[DOCUMENT])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"


SHOPPING = Layout(
    TABLES,
    "case_",
    re.compile(r"(?:[^/]+/)*case_([A-Za-z0-9_-]{1,40})/([a-z_]+\.jsonl?)"),
    check,
    check_asked,
)
