"""DeepPlanning's published shopping layout with invented entries: a case by hand, and generated ones with their solutions and faults."""

import gzip
import io
import json
import random
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from opd_envs.deepplanning.shopping.tables import NAMES, WORTH

Json = dict[str, Any]
Call = tuple[str, Json]
STORE_30, STORE_60, STORE_120, BRAND_25, VIP = NAMES[0], NAMES[1], NAMES[2], NAMES[5], NAMES[9]
DEMOGRAPHICS = ("Men", "Women")
CARRIERS = ("SF Express", "JD Logistics", "YTO Express", "China Post", "EMS")


def product(number: str, brand: str, name: str, color: str, size: str, price: float, stock: int, **more: Any) -> Json:
    """A product; `more` gives sales, rating, origin, provider and coupons."""
    monthly, score = more.get("monthly", 100), more.get("score", 4.5)
    return {
        "product_id": number, "name": name, "brand": brand, "color": color, "size": size,
        "suitable_season": more.get("season", "Summer"), "target_demographic": more.get("group", "Men"), "price": price,
        "stock_quantity": stock, "sales_volume": {"monthly": monthly, "total": 10 * monthly},
        "rating": {"average_score": score, "total_reviews": 4 * monthly, "star_distribution": {"1_star": 3}},
        "shipping_info": {"origin": more.get("origin", "Guangdong"), "provider": more.get("provider", "EMS")},
        "applicable_coupons": more.get("coupons", []),
    }  # fmt: skip


def files(level: int, case: str) -> dict[str, Any]:
    """A case by hand: the documents by file. The boots' stock tells the cases apart."""
    boots = product("b1", "Elkfoot", "Marsh Boots", "black", "42", 400.0, 2 + int(case), monthly=50, score=4.9, origin="Tibet",
                    provider="China Post", coupons=[STORE_30, STORE_60, BRAND_25])  # fmt: skip
    products = [
        product("a1", "Heronwear", "Trail Shoe Swift", "Orange", "42", 199.5, 3, origin="Guangdong Province",
                provider="SF Express", coupons=[STORE_30, BRAND_25]),
        product("a2", "heronwear", "Trail Shoe Calm", "Orange", "43", 150.0, 9, monthly=300, provider="YTO Express"),
        boots,
        product("c1", "Larkline", "Linen Shirt", "White", "L", 80.25, 40, group="Women", season="All Seasons",
                coupons=[STORE_30]),
        product("c2", "Larkline", "Wool Shirt", "Grey", "XL", 120.0, 7, season="Winter", score=3.9),
        product("d1", "Fernby", "Canvas Bag", "Green", "M", 59.9, 100, monthly=20, origin="inner mongolia"),
    ]  # fmt: skip
    user = {
        "user_id": "u7", "name": "Ada", "is_vip": level == 3, "address": {"province": "beijing"},
        "coupons": {STORE_30: 2, STORE_60: 1, VIP: 1},
    }  # fmt: skip
    return {
        "products.jsonl": products,
        "user_info.json": user,
        "cart.json": {"items": [], "summary": {"total_items_count": 0, "total_price": 0.0}},
        "validation_cases.json": {
            "query": query(level, case)["query"],
            "ground_truth_products": [{"product_id": number, "name": "x"} for number in ("b1", "c1")],
            "ground_truth_coupons": {STORE_30: 1} if level == 3 else {},
        },
    }


def query(level: int, case: str) -> Json:
    """A published query."""
    return {"id": case, "query": f"Boots and a linen shirt (order_{level}_{case})"}


class Fault(NamedTuple):
    """A wrong cart: its calls, and what the scores say of it."""

    calls: list[Call]
    broken: str
    """The rule that does not hold."""


class Shop:
    """A generated case: its documents, the calls that fill the right cart, and faults. The same seed gives the same case."""

    def __init__(self, level: int, seed: int) -> None:
        self.level, self.case = level, str(seed)
        rng = random.Random(f"shop:{level}:{seed}")
        self.products = [self._product(rng, n) for n in range(rng.randint(30, 60))]
        wanted = rng.sample(self.products, rng.randint(3, 7))
        self.wanted = [item["product_id"] for item in wanted]
        self.unwanted = next(item for item in self.products if item["product_id"] not in self.wanted)["product_id"]
        owned = rng.sample(NAMES, rng.randint(3, 6))
        self.user = {
            "user_id": f"u{seed}", "is_vip": True, "address": "beijing",
            "coupons": {name: rng.randint(2, 4) for name in owned},
        }  # fmt: skip
        self.used, self.spare = self._coupons(sum(item["price"] for item in wanted), owned)

    def _product(self, rng: random.Random, n: int) -> Json:
        return product(
            f"{self.case}-{n:03d}", rng.choice(["Heronwear", "Larkline", "Elkfoot"]), f"Item {rng.choice('abcdef')} {n}",
            rng.choice(["Black", "White"]), rng.choice(["S", "M", "42"]), round(rng.uniform(200, 900), 2), rng.randint(3, 50),
            monthly=rng.randint(1, 500), score=rng.randint(30, 50) / 10, origin=rng.choice(["guangdong", "Tibet", "上海市"]),
            provider=rng.choice(CARRIERS), coupons=rng.sample(NAMES, 3),
        )  # fmt: skip

    def _coupons(self, price: float, owned: list[str]) -> tuple[dict[str, int], str | None]:
        """What the right cart uses, as far as its price goes, and one more that it has room for."""
        used: dict[str, int] = {}
        if self.level < 3:
            return used, None
        for name in owned:
            left = price - sum(WORTH[one].threshold * number for one, number in used.items())
            if len(used) == 2:
                return used, name if left >= WORTH[name].threshold else None
            number = min(2, int(left // WORTH[name].threshold))
            if number:
                used[name] = number
        return used, None

    def files(self) -> dict[str, Any]:
        """The documents by file."""
        answer = {
            "query": query(self.level, self.case)["query"],
            "ground_truth_products": [{"product_id": number, "name": "x"} for number in self.wanted],
            "ground_truth_coupons": self.used,
        }
        cart = {"items": [], "used_coupons": [], "summary": {"total_items_count": 0, "total_price": 0.0}}
        return {
            "products.jsonl": self.products, "user_info.json": self.user, "cart.json": cart, "validation_cases.json": answer
        }  # fmt: skip

    def solution(self) -> list[Call]:
        """The calls that fill the right cart."""
        calls = [_add(number) for number in self.wanted]
        return calls + [("add_coupon_to_cart", {"coupon_name": name, "quantity": n}) for name, n in self.used.items()]

    def faults(self) -> dict[str, Fault]:
        """Wrong carts by name; those with coupons only where the right cart has some."""
        right, out = self.solution(), ("delete_product_from_cart", {"product_id": self.wanted[0]})
        found = {
            "nothing bought": Fault([], "products"),
            "a product missing": Fault([*right, out], "products"),
            "another product": Fault([*right, out, _add(self.unwanted)], "products"),
            "one product too many": Fault([*right, _add(self.unwanted)], "nothing_else"),
            "a product twice": Fault([*right, _add(self.wanted[0])], "nothing_else"),
        }
        for name, number in list(self.used.items())[:1]:
            every = {"coupon_name": name, "quantity": number}
            found["a coupon missing"] = Fault([*right, ("delete_coupon_from_cart", every)], "coupons")
            if number > 1:
                fewer = [*right, ("delete_coupon_from_cart", {"coupon_name": name})]
                found["a coupon too seldom"] = Fault(fewer, "coupons")
        if self.spare is not None:
            found["one coupon too many"] = Fault(
                [*right, ("add_coupon_to_cart", {"coupon_name": self.spare})], "nothing_else"
            )
        return found


def _add(number: str) -> Call:
    return "add_product_to_cart", {"product_id": number}


def texts(documents: dict[str, Any]) -> dict[str, str]:
    """The files' texts: one product a line, the others over several."""
    lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in documents["products.jsonl"])
    others = {name: found for name, found in documents.items() if name != "products.jsonl"}
    return {"products.jsonl": lines} | {
        name: json.dumps(found, ensure_ascii=False, indent=4) for name, found in others.items()
    }


def write_tar(
    path: Path,
    level: int,
    cases: Iterable[tuple[str, dict[str, Any]]],
    *,
    change: Callable[[dict[str, bytes]], object] = lambda members: None,
) -> Path:
    """`database_levelN.tar.gz`; `change` may damage the members, by name, before they are packed."""
    members = {
        f"database_level{level}/case_{case}/{name}": text.encode()
        for case, documents in cases
        for name, text in texts(documents).items()
    }
    change(members)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path
