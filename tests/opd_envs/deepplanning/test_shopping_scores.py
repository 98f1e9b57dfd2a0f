"""Carts on generated cases: the right one scores 1, a planted fault breaks its rule, and a surplus costs reward alone."""

import json

import pyarrow.parquet as pq
import pytest
from tests.opd_envs.deepplanning import shop
from tests.opd_envs.deepplanning.customer import Customer
from tests.opd_envs.deepplanning.published import write_data, write_queries

from opd.agent.dialogue import ANSWERED, ASSISTANT_TURNS
from opd.agent.settings import ENDING, TOOL_STATE
from opd_envs.deepplanning.__main__ import main as import_main
from opd_envs.deepplanning.parts import ARCHIVES, LEVELS, SHOPPING_PARTS
from opd_envs.deepplanning.prepare import main as prepare
from opd_envs.deepplanning.reward import compute_score
from opd_envs.deepplanning.shopping.catalog import open_database
from opd_envs.deepplanning.shopping.score import judge_filled_cart
from opd_envs.deepplanning.shopping.tables import NAMES
from opd_envs.deepplanning.task import BenchmarkCart

NUM_CASES = 67
"""Of each level."""
NUMBERS = {
    "hard_products", "hard_coupons", "hard_nothing_else", "case_score", "match_score", "coupon_score", "matched_count",
    "expected_count", "extra_products_count", "incomplete", "score", "acc", "pred",
}  # fmt: skip


@pytest.fixture(scope="module")
def shops():
    return [shop.Shop(level, number) for level in LEVELS for number in range(NUM_CASES)]


@pytest.fixture(scope="module")
def folder(shops, tmp_path_factory):
    data = tmp_path_factory.mktemp("shops")
    for level, part in SHOPPING_PARTS.items():
        own = [one for one in shops if one.level == level]
        shop.write_tar(data / ARCHIVES[part], level, [(one.case, one.files()) for one in own])
        write_queries(data, part, [shop.query(level, one.case) for one in own])
    assert import_main(["import", "--data-dir", str(data), "--out", str(data / "db")]) == 0
    prepare(["--data-dir", str(data), "--database-dir", str(data / "db")])
    return data / "db"


@pytest.fixture(scope="module")
def database(folder):
    database = open_database(folder)
    yield database
    database.close()


@pytest.fixture(scope="module")
def rows(folder):
    table = pq.read_table(folder.parent / "agent_processed" / "val_shopping.parquet").to_pylist()
    return {row["extra_info"]["case_id"]: row for row in table}


def case_of(one: shop.Shop) -> str:
    return f"shopping_{one.level}/{one.case}"


@pytest.fixture
def score(database, folder, rows):
    def of(one: shop.Shop, calls: list[shop.Call], **info):
        customer = Customer(database, case_of(one))
        for name, arguments in calls:
            customer(name, **arguments)
        row = rows[case_of(one)]
        extra = row["extra_info"] | {TOOL_STATE: customer.state, ENDING: ANSWERED} | info
        truth = row["reward_model"]["ground_truth"]
        return compute_score(row["data_source"], "done", truth, extra, database_dir=str(folder))

    return of


def test_the_right_cart_has_every_number_at_its_best(shops, score):
    assert sum(bool(one.used) for one in shops) > NUM_CASES / 2
    for one in shops:
        row = score(one, one.solution())
        expected = len(one.wanted) + len(one.used)
        assert set(row) == NUMBERS
        assert row["score"] == row["acc"] == row["case_score"] == row["match_score"] == 1.0
        assert row["hard_products"] == row["hard_coupons"] == row["hard_nothing_else"] == 1.0
        assert row["coupon_score"] == float(bool(one.used))
        assert row["matched_count"] == row["expected_count"] == expected
        assert row["extra_products_count"] == row["incomplete"] == 0.0


FAULTS = {
    "nothing bought": {"products"},
    "a product missing": {"products"},
    "another product": {"products", "nothing_else"},
    "one product too many": {"nothing_else"},
    "a product twice": {"nothing_else"},
    "a coupon missing": {"coupons"},
    "a coupon too seldom": {"coupons"},
    "one coupon too many": {"nothing_else"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_breaks_its_rule_and_a_surplus_lowers_the_reward_alone(shops, score, name):
    planted = [(one, fault) for one in shops if (fault := one.faults().get(name)) is not None]
    assert len(planted) >= 20
    for one, fault in planted:
        row = score(one, fault.calls)
        broken = {rule for rule in ("products", "coupons", "nothing_else") if row[f"hard_{rule}"] == 0.0}
        assert broken - ({"coupons"} if one.used and name == "nothing bought" else set()) == FAULTS[name]
        assert row["case_score"] == row["acc"] == float(broken == {"nothing_else"})
        assert row["match_score"] == row["matched_count"] / row["expected_count"]
        surplus = float("nothing_else" in broken)
        assert row["score"] == row["matched_count"] / (row["expected_count"] + surplus) < 1.0
        assert row["extra_products_count"] == float(name in ("another product", "one product too many"))


def cart(*items: tuple[str, int], **coupons: int):
    used = [{"coupon_name": NAMES[int(name[1:])], "quantity": number} for name, number in coupons.items()]
    return {"items": [{"product_id": number, "quantity": n} for number, n in items], "used_coupons": used}


TASK = BenchmarkCart(product_ids=("a", "b", "b"), coupons={NAMES[0]: 2})


@pytest.mark.parametrize(
    ("filled", "matched", "extra", "reward"),
    [
        (cart(("a", 1), ("b", 2), c0=2), 3, 0, 3 / 3),
        (cart(("a", 1), ("b", 1), c0=2), 3, 0, 3 / 3),  # ids alone count: the second b is allowed, not asked for
        (cart(("a", 1), ("b", 4), c0=2), 3, 0, 3 / 5),
        (cart(("a", 1), ("b", 1), ("x", 3), c0=2), 3, 1, 3 / 6),
        (cart(("a", 1), ("b", 1), c0=1), 2, 0, 2 / 3),  # the wrong number of a right coupon is missed, not also surplus
        (cart(("a", 1), ("b", 1), c0=2, c1=3), 3, 0, 3 / 4),
        (cart(("x", 1)), 0, 1, 0.0),
    ],
)
def test_the_reward_is_the_matched_share_of_what_was_expected_and_what_is_too_much(filled, matched, extra, reward):
    found = judge_filled_cart(filled, TASK)
    assert (found.scores["matched_count"], found.scores["extra_products_count"]) == (matched, extra)
    assert (found.scores["case_score"], found.reward) == (float(matched == 3), reward)


def test_a_query_that_expects_nothing_scores_as_in_the_benchmark_and_earns_nothing():
    found = judge_filled_cart(cart(), BenchmarkCart(product_ids=()))
    assert (found.scores["case_score"], found.scores["match_score"], found.reward) == (1.0, 0.0, 0.0)


def test_a_conversation_that_did_not_end_by_itself_is_incomplete_and_its_cart_counts(shops, score):
    row = score(shops[0], shops[0].solution(), **{ENDING: ASSISTANT_TURNS})
    assert (row["incomplete"], row["score"]) == (1.0, 1.0)


def test_what_the_database_lacks_is_dropped_and_counted_and_an_empty_set_is_left_out(tmp_path, capsys):
    data = write_data(tmp_path, languages=["en"], levels=[1, 2], cases="012")
    answers = {"ground_truth_products": [], "ground_truth_coupons": {}, "query": shop.query(1, "1")["query"]}
    cases = [("0", shop.files(1, "0")), ("1", shop.files(1, "1") | {"validation_cases.json": answers})]
    shop.write_tar(data / ARCHIVES["shopping_1"], 1, cases)
    assert import_main(["import", "--data-dir", str(data), "--out", str(data / "db"), "--levels", "1"]) == 0
    prepare(["--data-dir", str(data), "--database-dir", str(data / "db")])
    summary = json.loads((data / "agent_processed" / "summary.json").read_text())
    assert summary["sets"]["deepplanning_shopping_1"]["num_dropped"] == {"nothing_to_check": 1, "no_case": 1}
    printed = capsys.readouterr().out
    for name, reason in (("travel_en", "no_case 3"), ("shopping_2", "no_case 3")):
        assert f"left out: deepplanning_{name}: none of its queries can be used ({reason})" in printed
    assert [path.name for path in (data / "agent_processed").glob("*.parquet")] == ["val_shopping.parquet"]
