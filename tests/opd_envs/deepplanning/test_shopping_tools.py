"""The published shopping interface: a scripted call of every tool against the reply that the case's documents give by hand."""

import asyncio
import json

import pytest
from tests.opd_envs.deepplanning import shop
from tests.opd_envs.deepplanning.customer import TOOLSET, Customer
from tests.opd_envs.deepplanning.shop import BRAND_25, STORE_30, STORE_60, VIP

from opd.agent.environments import load_environment, tool_schemas
from opd.agent.shared import EpisodeTools
from opd.agent.tool_pool import ToolPool
from opd_envs.deepplanning.shopping.catalog import open_database
from opd_envs.travel.entries import LANGUAGES

TEXT, TEXTS, WHOLE, NUMBER = "string", "array", "integer", "number"
AMONG = {"product_ids": TEXTS}
PUBLISHED = {
    "search_products": ({"query": TEXT}, {"limit": WHOLE}),
    "filter_by_brand": ({"brand_names": TEXTS}, AMONG),
    "filter_by_color": ({"colors": TEXTS}, AMONG),
    "filter_by_size": ({"sizes": TEXTS}, AMONG),
    "filter_by_applicable_coupons": ({"coupon_names": TEXTS}, AMONG),
    "filter_by_range": ({"condition_key": TEXT, "operator": TEXT, "value": NUMBER}, AMONG),
    "sort_products": ({"sort_by": TEXT}, AMONG | {"order": TEXT}),
    "get_product_details": (AMONG, {}),
    "calculate_transport_time": ({"product_id": TEXT, "destination_address": TEXT}, {"provider": TEXT}),
    "get_user_info": ({}, {"user_id": TEXT}),
    "add_product_to_cart": ({"product_id": TEXT}, {"quantity": WHOLE}),
    "delete_product_from_cart": ({"product_id": TEXT}, {"quantity": WHOLE}),
    "get_cart_info": ({}, {}),
    "add_coupon_to_cart": ({"coupon_name": TEXT}, {"quantity": WHOLE}),
    "delete_coupon_from_cart": ({"coupon_name": TEXT}, {"quantity": WHOLE}),
}


@pytest.fixture(scope="module")
def database(imported):
    database = open_database(imported)
    yield database
    database.close()


@pytest.fixture
def ask(database):
    return Customer(database, "shopping_1/0")


@pytest.fixture
def vip(database):
    return Customer(database, "shopping_3/0")


@pytest.mark.parametrize("language", LANGUAGES)
def test_names_arguments_and_types_are_the_published_ones(language):
    schemas = {schema["function"]["name"]: schema["function"] for schema in tool_schemas(TOOLSET.format(language))}
    assert list(schemas) == list(PUBLISHED)
    for name, (required, optional) in PUBLISHED.items():
        parameters = schemas[name]["parameters"]
        assert parameters["required"] == list(required)
        assert {key: spec["type"] for key, spec in parameters["properties"].items()} == required | optional
        assert schemas[name]["description"].isascii() == (language == "en")
        for spec in parameters["properties"].values():
            assert spec["description"].replace("¥", "").isascii() == (language == "en")
            assert spec["type"] != TEXTS or spec["items"]["type"] == TEXT
    numbers = ["sales_volume.monthly", "sales_volume.total", "rating.average_score"]
    enums = {name: schemas[name]["parameters"]["properties"] for name in ("filter_by_range", "sort_products")}
    assert enums["filter_by_range"]["condition_key"]["enum"] == [
        "price", "stock_quantity", *numbers, "rating.total_reviews"
    ]  # fmt: skip
    assert enums["filter_by_range"]["operator"]["enum"] == [">", ">=", "<", "<=", "=="]
    assert enums["sort_products"]["sort_by"]["enum"] == ["price", *numbers, "stock_quantity", "name"]
    assert enums["sort_products"]["order"]["enum"] == ["asc", "desc"]


def test_a_search_finds_what_scores_more_than_two(ask):
    # A word of one product in six weighs ln(5.5 / 1.5) = 1.30, of two ln(4.5 / 2.5) = 0.59.
    assert ask("search_products", query="MARSH boots") == {"product_ids": ["b1"]}
    assert ask("search_products", query="boots") == {"product_ids": []}
    assert ask("search_products", query="") == {"product_ids": []}
    both = ask("search_products", query="trail shoe swift calm linen white canvas green")["product_ids"]
    assert set(both) == {"a1", "a2", "c1", "d1"}
    assert ask("search_products", query="trail shoe swift calm linen white canvas green", limit=1) == {
        "product_ids": both[:1]
    }


def test_filters_take_any_of_their_values_whatever_their_case(ask):
    assert ask("filter_by_brand", brand_names=["HERONWEAR", "Fernby"]) == {"filtered_products_ids": ["a1", "a2", "d1"]}
    assert ask("filter_by_brand", brand_names=["heronwear"], product_ids=["a2", "b1"]) == {
        "filtered_products_ids": ["a2"]
    }
    assert ask("filter_by_color", colors=["orange", "BLACK"]) == {"filtered_products_ids": ["a1", "a2", "b1"]}
    assert ask("filter_by_size", sizes=["xl", "42"]) == {"filtered_products_ids": ["a1", "b1", "c2"]}
    assert ask("filter_by_size", sizes=[]) == {"filtered_products_ids": []}


def test_a_product_must_take_all_the_coupons(ask):
    assert ask("filter_by_applicable_coupons", coupon_names=[STORE_30, BRAND_25]) == {
        "filtered_products_ids": ["a1", "b1"]
    }
    assert ask("filter_by_applicable_coupons", coupon_names=[STORE_30], product_ids=["c1", "d1"]) == {
        "filtered_products_ids": ["c1"]
    }
    assert ask("filter_by_applicable_coupons", coupon_names=[]) == {"filtered_products_ids": []}


def test_products_are_sorted_by_a_number_or_their_name_and_equals_keep_their_order(ask):
    assert ask("sort_products", sort_by="price") == {"sorted_product_ids": ["b1", "a1", "a2", "c2", "c1", "d1"]}
    assert ask("sort_products", sort_by="Name", order="ASC", product_ids=["c2", "a1", "x", "d1"]) == {
        "sorted_product_ids": ["d1", "a1", "c2"]
    }
    rated = ask("sort_products", sort_by="rating.average_score")["sorted_product_ids"]
    assert rated == ["b1", "a1", "a2", "c1", "d1", "c2"]


@pytest.mark.parametrize(
    ("number", "to", "days"),
    [
        ("a1", "guangdong", 1),  # 1 day within a region, SF Express two less, never below 1
        ("a2", "heilongjiang", 5),  # 4 from the south to the north-east, YTO Express one more
        ("b1", "beijing", 7),  # 3, two more out of Tibet, China Post two more
        ("c1", "新疆", 6),  # 4, two more into Xinjiang
        ("d1", "Hubei Province", 1),  # taken for Hubei: spaces go, and `e` is one of Hubei's names
    ],
)
def test_delivery_counts_regions_remote_provinces_and_the_products_own_carrier(ask, number, to, days):
    asked = {"product_id": number, "destination_address": to, "provider": "sf_express"}
    origin = {item["product_id"]: item["shipping_info"]["origin"] for item in shop.files(1, "0")["products.jsonl"]}
    assert ask("calculate_transport_time", **asked) == {
        "product_id": number, "origin": origin[number], "destination": to, "estimated_delivery_days": days,
    }  # fmt: skip


def lines(**quantities: int) -> list[dict]:
    found = {item["product_id"]: item for item in shop.files(1, "0")["products.jsonl"]}
    return [
        {"product_id": number, "name": found[number]["name"], "quantity": n, "price": found[number]["price"]}
        for number, n in quantities.items()
    ]


def total(number: int, price: float) -> dict:
    return {"total_items_count": number, "total_price": price}


def test_the_cart_follows_products_in_and_out(ask):
    assert ask("get_cart_info") == {"items": [], "summary": total(0, 0.0)}
    assert ask("add_product_to_cart", product_id="c1") == {"items": lines(c1=1), "summary": total(1, 80.25)}
    assert ask("add_product_to_cart", product_id="a1", quantity=2)["summary"] == total(3, 479.25)
    both = ask("add_product_to_cart", product_id="c1", quantity=3)
    assert both == {"items": lines(c1=4, a1=2), "summary": total(6, 720.0)} == ask("get_cart_info")
    assert ask("delete_product_from_cart", product_id="c1") == {"items": lines(c1=3, a1=2), "summary": total(5, 639.75)}
    assert ask("delete_product_from_cart", product_id="c1", quantity=9) == {
        "items": lines(a1=2), "summary": total(2, 399.0)
    }  # fmt: skip


def test_coupons_lower_the_price_and_share_what_the_cart_is_worth(vip):
    vip("add_product_to_cart", product_id="b1", quantity=2)
    used = vip("add_coupon_to_cart", coupon_name=STORE_30)
    assert used == {
        "items": lines(b1=2), "used_coupons": [{"coupon_name": STORE_30, "quantity": 1}], "summary": total(2, 770.0)
    }  # fmt: skip
    assert vip("add_coupon_to_cart", coupon_name=STORE_60)["summary"] == total(2, 710.0)  # 300 and 500 are within 800
    assert vip.refusal("add_coupon_to_cart", coupon_name=STORE_30) == (
        "the cart costs 800, all coupons in it together ask for 1100"
    )
    assert vip("delete_coupon_from_cart", coupon_name=STORE_60) == used
    assert vip("add_coupon_to_cart", coupon_name=STORE_30)["used_coupons"] == [{"coupon_name": STORE_30, "quantity": 2}]
    assert vip("delete_coupon_from_cart", coupon_name=STORE_30, quantity=2) == {
        "items": lines(b1=2), "used_coupons": [], "summary": total(2, 800.0)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("filter_by_brand", {"brand_names": ["x"], "product_ids": ["a1", "x"]}, 'product_ids = "x": there is no such'),
        ("filter_by_applicable_coupons", {"coupon_names": ["TEN"]}, 'coupon_names = "TEN": there is no such coupon'),
        (
            "filter_by_range",
            {"condition_key": "mass", "operator": ">", "value": 1},
            'condition_key = "mass": a product',
        ),
        ("filter_by_range", {"condition_key": "price", "operator": "!=", "value": 1}, 'operator = "!="'),
        ("sort_products", {"sort_by": "mass"}, 'sort_by = "mass": a product has no value there'),
        ("sort_products", {"sort_by": "price", "order": "up"}, 'order = "up": must be asc or desc'),
        ("get_product_details", {}, "product_ids is missing"),
        ("calculate_transport_time", {"product_id": "x", "destination_address": "beijing"}, "there is no such product"),
        ("calculate_transport_time", {"product_id": "a1", "destination_address": "???"}, "destination_address = "),
        ("get_user_info", {"user_id": "u8"}, 'user_id = "u8": there is no such user'),
        ("add_product_to_cart", {"product_id": "x"}, 'product_id = "x": there is no such product'),
        ("add_product_to_cart", {"product_id": "a1", "quantity": 0}, "greater than or equal to 1"),
        ("delete_product_from_cart", {"product_id": "a1"}, 'product_id = "a1": is not in the cart'),
        ("add_coupon_to_cart", {"coupon_name": STORE_30}, "the cart costs 0, all coupons in it together ask for 300"),
        ("add_coupon_to_cart", {"coupon_name": BRAND_25}, "the user owns 0, 0 are in the cart; 1 more are too many"),
        ("add_coupon_to_cart", {"coupon_name": VIP}, "is for VIPs, which the user is not"),
        ("add_coupon_to_cart", {"coupon_name": "TEN"}, "there is no such coupon; the coupons are Cross-store"),
        ("delete_coupon_from_cart", {"coupon_name": STORE_30}, "is not in the cart"),
    ],
)
def test_a_wrong_argument_is_named_with_the_rule(ask, tool, arguments, message):
    assert message in ask.refusal(tool, **arguments)
    assert ask.state is None


def conversations(imported, *cases: str, **options):
    """A pool, and the tools of one conversation a case."""
    pool = ToolPool(imported, **{"num_processes": 1, "timeout_s": 60.0, "toolset": TOOLSET.format("en")} | options)
    names = load_environment(TOOLSET.format("en")).tools
    return pool, [
        EpisodeTools(pool=pool, names=names, episode_seed=None, case_id=case, keeps_state=True) for case in cases
    ]


def test_calls_of_one_turn_act_on_the_cart_in_their_order(imported):
    pool, (tools,) = conversations(imported, "shopping_1/1", num_processes=3)

    async def talk():
        calls = [("add_product_to_cart", {"product_id": "b1"})] * 3 + [
            ("delete_product_from_cart", {"product_id": "b1"})
        ]
        replies = await asyncio.gather(*(tools.call(name, arguments) for name, arguments in calls))
        return [json.loads(reply.text)["summary"]["total_items_count"] for reply in replies]

    try:
        assert asyncio.run(talk()) == [1, 2, 3, 2]  # three are in stock in this case, two in the other
    finally:
        pool.close()


@pytest.mark.slow
def test_a_cart_outlives_every_process_that_changed_it(imported, tmp_path):
    toolset = tmp_path / "dangerous.py"
    toolset.write_text(
        "import os, time\n"
        "from dataclasses import replace\n"
        "from opd.agent.tools import Tool\n"
        "from opd_envs.deepplanning.environments import SHOPPING_EN\n"
        "from opd_envs.deepplanning.shopping.tools import Nothing\n"
        "ENVIRONMENT = replace(SHOPPING_EN, tools={**SHOPPING_EN.tools,\n"
        "    'die': Tool('die', 'x', Nothing, lambda *_: os._exit(3)),\n"
        "    'hang': Tool('hang', 'x', Nothing, lambda *_: time.sleep(3600))})\n"
    )
    pool, (tools,) = conversations(imported, "shopping_1/0", toolset=str(toolset))
    hasty, _ = conversations(imported, toolset=str(toolset), timeout_s=0.5)

    async def talk():
        await tools.call("add_product_to_cart", {"product_id": "c1"})
        errors = [(await tools.call("die", {})).error]
        tools.pool = hasty
        errors.append((await tools.call("hang", {})).error)
        tools.pool = pool
        reply = await tools.call("add_product_to_cart", {"product_id": "d1"})
        return errors, json.loads(reply.text)["items"]

    try:
        assert asyncio.run(talk()) == (["crashed", "timeout"], lines(c1=1, d1=1))
    finally:
        pool.close()
        hasty.close()
