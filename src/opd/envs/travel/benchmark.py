"""Scoring DeepPlanning rows: the published constraints name the entries that a right plan or cart holds."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opd.envs.travel.case import Verdict
from opd.envs.travel.plan import Plan, PlanError, find_json, parse_plan
from opd.envs.travel.task import BenchmarkCart, BenchmarkTrip, EntryKind, TaskError, entry_kind

DAYS_COMPLETE = "days_complete"


class Cart(BaseModel):
    """A shopping answer: `<cart>{"products": [ID, ...], "coupons": {NAME: NUMBER}}</cart>`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    products: tuple[str, ...] = Field(max_length=500)
    coupons: dict[str, int] = {}


def judge_trip(text: str, task: BenchmarkTrip) -> tuple[Verdict, ...]:
    """One verdict a published constraint: its entries are in the plan, and the stated cost is within the budget.

    Names must be exactly right and of the constraint's kind, as in the benchmark's own evaluation; the table in
    `opd/envs/deepplanning/README.md` says where the two differ.

    Raises:
        TaskError: a constraint of no kind that is known.
    """
    names = (*task.required_names, DAYS_COMPLETE, *(("budget",) if task.max_budget is not None else ()))
    try:
        plan = parse_plan(text)
    except PlanError as error:
        return tuple(Verdict(name, (str(error),)) for name in names)
    verdicts = named_verdicts(task, _held_names(plan))
    complete = len(plan.days) == task.num_days and all(day.activities for day in plan.days)
    verdicts.append(Verdict(DAYS_COMPLETE, () if complete else (f"the trip has {task.num_days} days",)))
    if task.max_budget is not None:
        cheap = complete and 0 < plan.total_cost <= task.max_budget
        verdicts.append(Verdict("budget", () if cheap else (f"total_cost is not within {task.max_budget}",)))
    return tuple(verdicts)


def named_verdicts(task: BenchmarkTrip, held: Mapping[EntryKind, Collection[str]]) -> list[Verdict]:
    """One verdict for each constraint that names entries.

    Args:
        task: the query.
        held: the names in the plan by what they are in it.

    Raises:
        TaskError: a constraint of no kind that is known.
    """
    return [
        Verdict(name, tuple(f"{entry} is not in the plan" for entry in entries if entry not in held[_kind(name)]))
        for name, entries in task.required_names.items()
    ]


def judge_cart(text: str, task: BenchmarkCart) -> tuple[Verdict, ...]:
    """The products are all there, nothing else is, and the coupons are used as often as they should be."""
    try:
        cart = Cart.model_validate(find_json(text, "cart"))
    except (PlanError, ValidationError) as error:
        reason = str(error) if isinstance(error, PlanError) else error.errors(include_url=False)[0]["msg"]
        return tuple(Verdict(name, (reason,)) for name in ("products", "nothing_else", "coupons"))
    wanted, found = Counter(task.product_ids), Counter(cart.products)
    missing, extra = wanted - found, found - wanted
    coupons = () if cart.coupons == task.coupons else (f"the right coupons are {task.coupons}",)
    return (
        Verdict("products", tuple(f"{product} is missing" for product in missing)),
        Verdict("nothing_else", tuple(f"{product[:80]} is not wanted" for product in extra)),
        Verdict("coupons", coupons),
    )


def personalized_score(verdicts: Iterable[Verdict]) -> float:
    """The benchmark's: 1 where every constraint of the query is satisfied, else 0; the number of days is none of them."""
    return float(all(verdict.satisfied for verdict in verdicts if verdict.name != DAYS_COMPLETE))


def _kind(constraint: str) -> EntryKind:
    kind = entry_kind(constraint)
    if kind is None:
        raise TaskError(f"required_names.{constraint}: must begin with {', '.join(get_args(EntryKind))}")
    return kind


def _held_names(plan: Plan) -> dict[EntryKind, set[str]]:
    """The names in the plan by what they are in it."""

    def of(activity_type: str) -> set[str]:
        return {activity.name for day in plan.days for activity in day.activities if activity.type == activity_type}

    return {
        "train": of("train"),
        "flight": of("flight"),
        "restaurant": of("meal"),
        "attraction": of("attraction"),
        "hotel": {day.hotel for day in plan.days if day.hotel is not None},
    }
