"""The outcome of every rule on a plan, and the benchmark's scores."""

from collections.abc import Mapping
from typing import NamedTuple

from opd_envs.deepplanning.database import Case
from opd_envs.deepplanning.scoring import rules, times
from opd_envs.deepplanning.scoring.plan import ATTRACTION, INTERCITY, MEAL, Plan
from opd_envs.deepplanning.scoring.report import parse_plan
from opd_envs.deepplanning.scoring.trip import Entries, PlannedTrip, Rule
from opd_envs.deepplanning.task import BenchmarkTrip, EntryKind, entry_kind
from opd_envs.scoring import PlanError

DIMENSIONS: Mapping[str, tuple[Rule, ...]] = {
    "route_consistency": (
        rules.valid_trip_duration,
        rules.closed_loop_route_structure,
        rules.seamless_intercity_transfers,
    ),
    "sandbox_compliance": (
        rules.validated_accommodation,
        rules.validated_attractions,
        rules.validated_meals,
        rules.validated_transportation,
    ),
    "itinerary_structure": (
        rules.traceable_accommodation,
        rules.ends_with_accommodation,
        rules.essential_meal_coverage,
        rules.essential_attraction_coverage,
    ),
    "time_feasibility": (times.no_time_overlaps, times.reasonable_transfer_time),
    "business_hours": (
        times.attraction_visit_within_opening_hours,
        times.dining_within_service_hours,
        times.avoidance_of_closure_days,
    ),
    "duration_rationality": (times.reasonable_duration_at_attractions, times.reasonable_meal_duration),
    "cost_calculation_accuracy": (rules.cost_calculation_correctness,),
    "activity_diversity": (rules.diverse_meal_options, rules.diverse_attraction_options),
}
"""The eight commonsense dimensions with their rules, by the benchmark's names. A dimension is 1 where all its rules hold."""
RULES = {rule.__name__: rule for rules in DIMENSIONS.values() for rule in rules}
_MODES: Mapping[str, EntryKind] = {
    **dict.fromkeys(("train", "火车", "railway", "高铁", "gaotie"), "train"),
    **dict.fromkeys(("flight", "飞机", "airplane", "plane"), "flight"),
}


class Judgement(NamedTuple):
    """Every rule and every constraint of the query by name: satisfied or not."""

    commonsense: dict[str, bool]
    hard: dict[str, bool]
    delivered: bool = False
    """There is a readable plan."""
    grounded: bool = False
    """Every day but the last names an entry of the database; the last day's only entry may be the wrong way home."""

    @property
    def dimensions(self) -> dict[str, float]:
        """1 or 0 for each dimension."""
        return {
            name: float(all(self.commonsense[rule.__name__] for rule in rules)) for name, rules in DIMENSIONS.items()
        }

    @property
    def scores(self) -> dict[str, float]:
        """The benchmark's numbers for one query, under its names; without constraints the personalized score is 0."""
        commonsense = sum(self.dimensions.values()) / len(DIMENSIONS)
        personalized = float(bool(self.hard) and all(self.hard.values()))
        return {
            "delivery_rate": float(self.delivered),
            "commonsense_score": commonsense,
            "personalized_score": personalized,
            "composite_score": (commonsense + personalized) / 2,
            "case_acc": float(commonsense == personalized == 1.0),
        }

    @property
    def reward(self) -> float:
        """The composite score, but 0 for a plan that is not grounded: an empty day breaks few rules."""
        return self.scores["composite_score"] if self.grounded else 0.0


def judge_plan(text: str, task: BenchmarkTrip, case: Case) -> Judgement:
    """Judge the plan in a model's text by the entries of its case."""
    entries = Entries(case)
    try:
        plan = parse_plan(text, places=entries.places)
    except PlanError:
        budget = () if task.max_budget is None else ("budget",)
        return Judgement(dict.fromkeys(RULES, False), dict.fromkeys((*task.required_names, *budget), False))
    trip, names = PlannedTrip(plan, task, entries), _names(plan)
    hard = {name: names[entry_kind(name)].issuperset(wanted) for name, wanted in task.required_names.items()}
    if task.max_budget is not None:
        hard["budget"] = rules.stated_cost(trip) <= task.max_budget
    commonsense = {name: rule(trip) for name, rule in RULES.items()}
    return Judgement(commonsense, hard, delivered=True, grounded=_is_grounded(trip))


def _names(plan: Plan) -> dict[EntryKind | None, set[str]]:
    """Return the names in the plan by the kind of their entry."""
    rides = [(_MODES.get(ride.details.mode.lower()), ride.details.number) for ride in plan.of(INTERCITY)]
    return {
        "train": {number for kind, number in rides if kind == "train"},
        "flight": {number for kind, number in rides if kind == "flight"},
        "restaurant": {meal.details.name for meal in plan.of(MEAL)},
        "attraction": {visit.details.name for visit in plan.of(ATTRACTION)},
        "hotel": {day.stay.name for day in plan.days if day.stay is not None},
    }


def _is_grounded(trip: PlannedTrip) -> bool:
    entries = trip.entries
    tables: Mapping[str, Mapping[str, object]] = {ATTRACTION: entries.attractions, MEAL: entries.restaurants}
    return all(
        any(
            activity.details.name in tables.get(activity.type, {})
            or (activity.type == INTERCITY and activity.details.number in entries.prices)
            for activity in day.activities
        )
        for day in trip.plan.days[:-1] or trip.plan.days
    )
