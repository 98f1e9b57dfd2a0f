"""A filled cart against the right one: the benchmark's own numbers, and a reward that a surplus lowers."""

from collections import Counter
from typing import NamedTuple

from opd_envs.deepplanning.shopping.cart import Cart
from opd_envs.deepplanning.task import BenchmarkCart
from opd_envs.travel.itinerary import Verdict


class CartJudgement(NamedTuple):
    """What a cart is worth."""

    verdicts: tuple[Verdict, ...]
    """`products` and `coupons`, of which the benchmark's rule consists, and `nothing_else`, of which it knows nothing."""
    scores: dict[str, float]
    """The benchmark's numbers of one case, under its names; `match_score` is what it calls a case's `score`."""
    reward: float
    """Matched products and coupons by expected ones and surplus: 1 for the right cart alone."""


def judge_filled_cart(cart: Cart, task: BenchmarkCart) -> CartJudgement:
    """Judges a cart.

    The benchmark compares sets of product ids, whatever their quantity, and asks each right coupon for its very number; what
    else is in the cart costs nothing there. Here each product beyond those wanted, piece by piece, and each coupon that is
    not wanted is one more that was expected and not matched.
    """
    wanted, held = Counter(task.product_ids), Counter[str]()
    for item in cart["items"]:
        held[item["product_id"]] += item["quantity"]
    used = {coupon["coupon_name"]: coupon["quantity"] for coupon in cart.get("used_coupons", [])}
    missing = [number for number in wanted if number not in held]
    wrong = [name for name, number in task.coupons.items() if used.get(name) != number]
    surplus, unwanted = held - wanted, [name for name in used if name not in task.coupons]
    expected = len(wanted) + len(task.coupons)
    matched = expected - len(missing) - len(wrong)
    num_surplus = surplus.total() + len(unwanted)
    num_coupons = len(task.coupons)
    return CartJudgement(
        (
            Verdict("products", tuple(f"{number} is missing" for number in missing)),
            Verdict("coupons", tuple(f"{name} is not used {task.coupons[name]} times" for name in wrong)),
            Verdict("nothing_else", tuple(f"{name[:80]} is not wanted" for name in (*surplus, *unwanted))),
        ),
        {
            "case_score": float(matched == expected),
            "match_score": matched / expected if expected else 0.0,
            "coupon_score": (num_coupons - len(wrong)) / num_coupons if num_coupons else 0.0,
            "matched_count": float(matched),
            "expected_count": float(expected),
            "extra_products_count": float(sum(number not in wanted for number in held)),
        },
        matched / (expected + num_surplus) if expected else 0.0,
    )
