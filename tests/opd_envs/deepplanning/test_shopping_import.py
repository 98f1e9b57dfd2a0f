"""The published shopping archives: imported as they stand beside travel's, and everything that differs is named."""

import gzip
import io
import tarfile

import pytest
from tests.opd_envs.deepplanning import shop
from tests.opd_envs.deepplanning.published import write_data

from opd_envs.deepplanning import archive as archives
from opd_envs.deepplanning.__main__ import main
from opd_envs.deepplanning.archive import Archive, ArchiveError
from opd_envs.deepplanning.database import open_database
from opd_envs.deepplanning.importer import checked_cases
from opd_envs.deepplanning.layout import DOCUMENT, Surprises
from opd_envs.deepplanning.shopping.catalog import first_cart
from opd_envs.deepplanning.shopping.checks import SHOPPING
from opd_envs.deepplanning.shopping.tables import TABLES


def test_every_document_is_stored_as_it_stands_under_its_case(imported):
    database = open_database(imported)
    for level, case in ((1, "0"), (3, "1")):
        texts = shop.texts(shop.files(level, case))
        for table in TABLES:
            stored = [row[DOCUMENT] for row in database.in_case(f"shopping_{level}/{case}").rows(table)]
            text = texts[table.file]
            assert stored == (text.splitlines() if table.file.endswith(".jsonl") else [text])
    database.close()


def surprises_of(tmp_path, change=lambda members: None, queries=None, **documents):
    """What `check` says of case 0 of level 3, some of its documents changed."""
    found = Surprises()
    cases = [("0", shop.files(3, "0") | documents)]
    path = shop.write_tar(tmp_path / "database_level3.tar.gz", 3, cases, change=change)
    with Archive(path, SHOPPING, found) as archive:
        for _ in checked_cases(archive, queries, found):
            pass
    return list(found.lines())


def with_product(tmp_path, **values):
    """The first product with other values; None: without one."""
    products = shop.files(3, "0")["products.jsonl"]
    products[0] = {key: value for key, value in (products[0] | values).items() if value is not None}
    return surprises_of(tmp_path, **{"products.jsonl": products})


def with_fields(tmp_path, file, **values):
    """Another document with other values."""
    return surprises_of(tmp_path, **{file: shop.files(3, "0")[file] | values})


PRODUCT_CHANGES = [
    ({"name": None}, "fault: products.jsonl: name is missing (case_0 line 1)"),
    ({"product_id": 7}, "fault: products.jsonl: product_id must be a text that is not empty (case_0 line 1)"),
    ({"product_id": "a2"}, "note: products.jsonl: product_id twice in one case (case_0 line 2: 'a2')"),
    ({"price": "12"}, "fault: products.jsonl: price must be a number from 0 (case_0 line 1: '12')"),
    ({"stock_quantity": True}, "fault: products.jsonl: stock_quantity must be a whole number from 0"),
    ({"applicable_coupons": "TEN"}, "fault: products.jsonl: applicable_coupons must be a list of texts"),
    ({"applicable_coupons": ["TEN"]}, "note: products.jsonl: applicable_coupons must hold known coupons only"),
    ({"shipping_info": []}, "fault: products.jsonl: shipping_info must be an object"),
    ({"shipping_info": {"provider": "EMS"}}, "note: products.jsonl: shipping_info.origin is missing"),
    ({"shipping_info": {"origin": "???", "provider": "EMS"}}, "shipping_info.origin must name a known province"),
    ({"shipping_info": {"origin": "beijing", "provider": "Lark"}}, "shipping_info.provider must be a known carrier"),
    ({"brand": ["x"]}, "note: products.jsonl: brand must be a text (case_0 line 1: ['x'])"),
    ({"collar_type": 3}, "note: products.jsonl: collar_type must be a text"),
    ({"rating": {}}, "note: products.jsonl: rating.average_score is missing"),
    ({"sales_volume": {"monthly": "9", "total": 9}}, "note: products.jsonl: sales_volume.monthly must be a number"),
]


@pytest.mark.parametrize(("values", "line"), PRODUCT_CHANGES, ids=range(len(PRODUCT_CHANGES)))
def test_a_product_that_differs_is_named_with_its_line(tmp_path, values, line):
    assert any(line in found for found in with_product(tmp_path, **values))


USER, CART, ANSWER = "user_info.json", "cart.json", "validation_cases.json"
ITEM = {"product_id": "b1", "name": "x", "quantity": 1, "price": 400.0}
WANTED = [{"product_id": "b1"}]
FIELD_CHANGES = [
    (USER, {"coupons": [1]}, "fault: user_info.json: coupons must hold whole numbers by coupon"),
    (USER, {"coupons": {"TEN": 1}}, "note: user_info.json: coupons must hold known coupons only"),
    (USER, {"is_vip": "yes"}, "note: user_info.json: is_vip must be true or false"),
    (
        CART,
        {"items": [{"product_id": "b1"}]},
        "fault: cart.json: items must be a list of objects with product_id, quan",
    ),
    (CART, {"items": [ITEM]}, "note: cart.json: items is not empty at the beginning (case_0 line 1: [{"),
    (
        CART,
        {"used_coupons": [{"coupon_name": "TEN", "quantity": 1}]},
        "fault: cart.json: used_coupons must be a list of",
    ),
    (CART, {"summary": 0}, "fault: cart.json: summary must be an object"),
    (ANSWER, {"ground_truth_products": ["b1"]}, "fault: validation_cases.json: ground_truth_products must be a list"),
    (ANSWER, {"ground_truth_products": [{"product_id": "x"}]}, "a product of the right cart is missing (case_0: 'x')"),
    (ANSWER, {"ground_truth_coupons": {"TEN": 1}}, "note: validation_cases.json: a coupon of the right cart is none"),
    (ANSWER, {"ground_truth_coupons": {shop.STORE_60: 2}}, "the user does not own the right cart's coupons"),
    (ANSWER, {"ground_truth_products": [], "ground_truth_coupons": {}}, "the right cart is empty (case_0)"),
    (ANSWER, {"ground_truth_products": [*WANTED, *WANTED]}, "a product of the right cart is there twice, or with"),
    (ANSWER, {"ground_truth_products": [{"product_id": "b1", "quantity": 2}]}, "is there twice, or with a quantity"),
]


@pytest.mark.parametrize(("file", "values", "line"), FIELD_CHANGES, ids=range(len(FIELD_CHANGES)))
def test_user_cart_and_answer_are_looked_at(tmp_path, file, values, line):
    assert any(line in found for found in with_fields(tmp_path, file, **values))


def edited(file, data):
    return lambda members: members.update({f"database_level3/case_0/{file}": data})


MEMBER_CHANGES = [
    (edited("products.jsonl", b'{"product_id": "a"\n'), "fault: products.jsonl: not JSON (case_0 line 1: Expecting"),
    (edited("products.jsonl", b'\n\n["a"]\n'), "fault: products.jsonl: must be an object (case_0 line 3)"),
    (edited("products.jsonl", b'{"product_id": "a", "price": NaN}'), "fault: products.jsonl: not JSON (case_0 line 1: NaN"),
    (edited("user_info.json", b"[" * 200_000), "fault: user_info.json: not JSON (case_0: nested too deeply)"),
    (edited("user_info.json", b"\xff"), "fault: user_info.json: not UTF-8 (case_0: invalid start byte at byte 0)"),
    (edited("cart.json", b" \n"), "note: cart.json: is empty; the case has no carts (case_0)"),
    (lambda m: m.pop("database_level3/case_0/cart.json"), "note: cart.json: no such file; the case has no carts (case_0)"),
    (edited("messages.json", b"{}"), "note: archive: a member that no tool reads; left out ('database_level3/case_0/mess"),
    (lambda m: m.update({"../case_0/cart.json": b"{}"}), "fault: archive: a member's name leads out of it ('../case_0"),
    (lambda m: m.clear(), "fault: archive: no file of the form case_N/products.jsonl is in it (database_level3.tar.gz)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "line"), MEMBER_CHANGES, ids=range(len(MEMBER_CHANGES)))
def test_a_member_that_differs_is_named_with_its_place(tmp_path, change, line):
    assert any(line in found for found in surprises_of(tmp_path, change))


def test_queries_are_compared_with_their_cases(tmp_path):
    found = surprises_of(tmp_path, queries={"0": (("query", "Other boots"),), "7": ()})
    assert "note: validation_cases.json: query is not that of the query file (case_0: 'Other boots')" in found
    assert "note: archive: a query without a case (case_7)" in found


def packed(path, *members: tarfile.TarInfo, data=b"{}"):
    with gzip.open(path, "wb") as raw, tarfile.open(fileobj=raw, mode="w") as archive:
        for member in members:
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return path


@pytest.mark.parametrize("limit", ["MAX_MEMBERS", "MAX_TOTAL_BYTES", "MAX_MEMBER_BYTES"])
def test_an_archive_beyond_the_limits_is_refused(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(archives, limit, 2)
    path = packed(tmp_path / "x.tar.gz", *(tarfile.TarInfo(f"case_{n}/cart.json") for n in range(5)), data=b"{}  ")
    with pytest.raises(ArchiveError, match="at most 2 are read"):
        Archive(path, SHOPPING, Surprises())


def test_a_case_without_cart_begins_with_an_empty_one_and_another_with_its_own(tmp_path):
    data = write_data(tmp_path, languages=[], levels=[1], cases="01")
    bare = {key: value for key, value in shop.files(1, "0").items() if key != "cart.json"}
    shop.write_tar(next(data.rglob("*.tar.gz")), 1, [("0", bare), ("1", bare | {"cart.json": {"items": [ITEM]}})])
    assert main(["import", "--data-dir", str(data), "--out", str(data / "db")]) == 0
    database = open_database(data / "db")
    empty = {"items": [], "summary": {"total_items_count": 0, "total_price": 0.0}}
    assert first_cart(database.in_case("shopping_1/0")) == empty
    assert first_cart(database.in_case("shopping_1/1")) == {
        "items": [ITEM], "summary": {"total_items_count": 1, "total_price": 0.0}
    }  # fmt: skip
    database.close()
