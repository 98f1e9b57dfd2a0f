"""The benchmark's shopping queries as rows, for validation only: the tools fill the carts."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from opd.data.raw_files import RawFileError
from opd.data.rows import Row
from opd_envs.deepplanning.database import Database, open_database
from opd_envs.deepplanning.layout import case_name
from opd_envs.deepplanning.parts import QUERY_FILES, SHOPPING_PARTS
from opd_envs.deepplanning.queries import Cases, Prepared, read_json, text_of
from opd_envs.deepplanning.shopping.catalog import right_cart
from opd_envs.deepplanning.shopping.words import RULES
from opd_envs.deepplanning.task import BenchmarkCart
from opd_envs.rows import agent_row
from opd_envs.travel.task import task_text

DATA_SOURCE = "deepplanning_shopping"


def shopping(data_dir: Path, *, first_index: int, cases: Cases) -> Iterator[tuple[str, Prepared]]:
    """The shopping queries of each level whose file is there: (set name, rows by `val`).

    Queries whose case the database lacks are dropped.

    Raises:
        RawFileError: a file that is missing or not in its published layout.
    """
    index = first_index
    for level, part in SHOPPING_PARTS.items():
        path = data_dir / QUERY_FILES[part]
        if not path.is_file():
            continue
        raw = read_json(path)
        rows: list[Row] = []
        dropped: Counter[str] = Counter()
        with closing(open_database(cases.folder)) as database:
            carts = [_right_cart(case_name(part, text_of(raw, row, "id")), database) for row in range(len(raw.records))]
        for row, found in enumerate(carts):
            query, identity = text_of(raw, row, "query"), text_of(raw, row, "id")
            if not isinstance(found, BenchmarkCart):
                dropped[found] += 1
                continue
            rows.append(
                agent_row(
                    task_text(found),
                    [{"role": "system", "content": RULES[level]}, {"role": "user", "content": query}],
                    data_source=DATA_SOURCE,
                    split="val",
                    index=index,
                    problem_id=f"deepplanning-shopping-{level}-{identity}",
                    language="en",
                    database_id=cases.manifest.database_id,
                    case_id=case_name(part, identity),
                )
            )
            index += 1
        yield f"{DATA_SOURCE}_{level}", Prepared(raw, {"val": rows}, dropped, [])


def _right_cart(name: str, database: Database) -> BenchmarkCart | str:
    """The right cart of a case; else why its query is dropped."""
    if name not in database.manifest.case_names:
        return "no_case"
    found = right_cart(database.in_case(name))
    return "no_validation_cases" if found is None else _cart(found, name)


def _cart(found: Mapping[str, Any], where: str) -> BenchmarkCart | str:
    try:
        products = tuple(str(product["product_id"]) for product in found["ground_truth_products"])
        coupons = {str(name): int(number) for name, number in (found.get("ground_truth_coupons") or {}).items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RawFileError(
            f"{where}: must be an object with ground_truth_products (each with product_id) and ground_truth_coupons "
            f"({type(error).__name__}: {error})"
        ) from error
    return BenchmarkCart(product_ids=products, coupons=coupons) if products or coupons else "nothing_to_check"
