"""The benchmark's shopping queries as rows, for validation only: with the imported database their carts are filled by the tools."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from opd.data.raw_files import RawFileError
from opd.data.rows import Row
from opd.envs.deepplanning.database import Database, open_database
from opd.envs.deepplanning.layout import case_name
from opd.envs.deepplanning.parts import QUERY_FILES, SHOPPING_PARTS, unpacked_answer
from opd.envs.deepplanning.shopping.catalog import right_cart
from opd.envs.deepplanning.shopping.words import RULES
from opd.envs.travel.data.deepplanning import Cases, Prepared, read_json, text_of
from opd.envs.travel.data.rows import agent_row
from opd.envs.travel.task import BenchmarkCart

DATA_SOURCE = "deepplanning_shopping"
_CART_FORM = (
    "You fill a shopping cart with the tools. When everything asked for is found, answer with the products' ids and the "
    'number of each coupon used: <cart>{"products": ["ID"], "coupons": {"NAME": 1}}</cart>'
)


def shopping(data_dir: Path, *, first_index: int, cases: Cases | None = None) -> Iterator[tuple[str, Prepared]]:
    """The shopping queries of each level whose file is there: (set name, rows by `val`).

    With a database that holds the level, right carts are read from it, and queries whose case it lacks are dropped. Without
    one they are read from where the benchmark unpacks its archives, and answers are texts.

    Raises:
        RawFileError: a file that is missing or not in its published layout.
    """
    index = first_index
    for level, part in SHOPPING_PARTS.items():
        path = data_dir / QUERY_FILES[part]
        if not path.is_file():
            continue
        raw = read_json(path)
        imported = cases if cases is not None and any(name.startswith(f"{part}/") for name in cases.names) else None
        rows: list[Row] = []
        dropped: Counter[str] = Counter()
        with ExitStack() as opened:
            database = imported and opened.enter_context(closing(open_database(imported.folder)))
            carts = [_right_cart(data_dir, level, text_of(raw, row, "id"), database) for row in range(len(raw.records))]
        for row, found in enumerate(carts):
            query, identity = text_of(raw, row, "query"), text_of(raw, row, "id")
            if not isinstance(found, BenchmarkCart):
                dropped[found] += 1
                continue
            rows.append(
                agent_row(
                    found,
                    [
                        {"role": "system", "content": _CART_FORM if imported is None else RULES[level]},
                        {"role": "user", "content": query},
                    ],
                    data_source=DATA_SOURCE,
                    split="val",
                    index=index,
                    problem_id=f"deepplanning-shopping-{level}-{identity}",
                    language="en",
                    database_id=None if imported is None else imported.manifest.database_id,
                    case_id=None if imported is None else case_name(part, identity),
                )
            )
            index += 1
        notes = (
            [f"import database_level{level}.tar.gz (python -m opd.envs.deepplanning import) for the right carts"]
            if dropped and imported is None
            else []
        )
        yield f"{DATA_SOURCE}_{level}", Prepared(raw, {"val": rows}, dropped, notes)


def _right_cart(data_dir: Path, level: int, case: str, database: Database | None) -> BenchmarkCart | str:
    """The right cart of a query; else why the query is dropped."""
    if database is None:
        path = data_dir / unpacked_answer(level, case)
        return _cart(_read(path), str(path)) if path.is_file() else "no_validation_cases"
    name = case_name(SHOPPING_PARTS[level], case)
    if name not in database.manifest.case_names:
        return "no_case"
    found = right_cart(database.in_case(name))
    return "no_validation_cases" if found is None else _cart(found, name, filled_by="tools")


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RawFileError(f"{path}: not JSON ({error})") from error


def _cart(found: Mapping[str, Any], where: str, **more: Any) -> BenchmarkCart | str:
    try:
        products = tuple(str(product["product_id"]) for product in found["ground_truth_products"])
        coupons = {str(name): int(number) for name, number in (found.get("ground_truth_coupons") or {}).items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RawFileError(
            f"{where}: must be an object with ground_truth_products (each with product_id) and ground_truth_coupons "
            f"({type(error).__name__}: {error})"
        ) from error
    return BenchmarkCart(product_ids=products, coupons=coupons, **more) if products or coupons else "nothing_to_check"
