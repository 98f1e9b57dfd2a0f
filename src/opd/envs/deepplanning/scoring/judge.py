"""Every rule's verdict on a plan, and the benchmark's scores of them."""

from collections.abc import Mapping
from typing import NamedTuple

from opd.envs.deepplanning.database import Case
from opd.envs.deepplanning.scoring import diversity, route, sandbox, structure, times
from opd.envs.deepplanning.scoring.cost import cost_calculation_correctness, stated_cost
from opd.envs.deepplanning.scoring.entries import Entries
from opd.envs.deepplanning.scoring.plan import ATTRACTION, INTERCITY, MEAL, Plan
from opd.envs.deepplanning.scoring.report import parse_plan
from opd.envs.deepplanning.scoring.trip import PlannedTrip, Rule
from opd.envs.travel.benchmark import named_verdicts
from opd.envs.travel.case import Verdict
from opd.envs.travel.plan import PlanError
from opd.envs.travel.task import BenchmarkFacts, BenchmarkTrip, EntryKind

DIMENSIONS: Mapping[str, tuple[Rule, ...]] = {
    "route_consistency": (
        route.valid_trip_duration,
        route.closed_loop_route_structure,
        route.seamless_intercity_transfers,
    ),
    "sandbox_compliance": (
        sandbox.validated_accommodation,
        sandbox.validated_attractions,
        sandbox.validated_meals,
        sandbox.validated_transportation,
    ),
    "itinerary_structure": (
        structure.traceable_accommodation,
        structure.ends_with_accommodation,
        structure.essential_meal_coverage,
        structure.essential_attraction_coverage,
    ),
    "time_feasibility": (times.no_time_overlaps, times.reasonable_transfer_time),
    "business_hours": (
        times.attraction_visit_within_opening_hours,
        times.dining_within_service_hours,
        times.avoidance_of_closure_days,
    ),
    "duration_rationality": (times.reasonable_duration_at_attractions, times.reasonable_meal_duration),
    "cost_calculation_accuracy": (cost_calculation_correctness,),
    "activity_diversity": (diversity.diverse_meal_options, diversity.diverse_attraction_options),
}
"""The eight commonsense dimensions with their rules, by the benchmark's names. A dimension is 1 where all of its rules hold."""
_MODES: Mapping[str, EntryKind] = {
    **dict.fromkeys(("train", "火车", "railway", "高铁", "gaotie"), "train"),
    **dict.fromkeys(("flight", "飞机", "airplane", "plane"), "flight"),
}


class Judgement(NamedTuple):
    """What became of every rule and of every constraint of the query."""

    commonsense: tuple[Verdict, ...]
    hard: tuple[Verdict, ...]
    delivered: bool
    """There is a plan that could be read."""
    grounded: bool
    """Every day of it but the last, whose only entry may be the wrong way home, names something of the database."""

    @property
    def dimensions(self) -> dict[str, float]:
        """1 or 0 for each dimension."""
        holds = {verdict.name: verdict.satisfied for verdict in self.commonsense}
        return {name: float(all(holds[rule.__name__] for rule in rules)) for name, rules in DIMENSIONS.items()}

    @property
    def scores(self) -> dict[str, float]:
        """The benchmark's numbers for one query, under its names; a query without constraints has no personalized score but 0."""
        dimensions = self.dimensions
        commonsense = sum(dimensions.values()) / len(dimensions)
        personalized = float(bool(self.hard) and all(verdict.satisfied for verdict in self.hard))
        return {
            "delivery_rate": float(self.delivered),
            "commonsense_score": commonsense,
            "personalized_score": personalized,
            "composite_score": (commonsense + personalized) / 2,
            "case_acc": float(commonsense == personalized == 1.0),
        }

    @property
    def reward(self) -> float:
        """The composite score, but 0 where a day before the last names nothing of the database: an empty day breaks few rules."""
        return self.scores["composite_score"] if self.grounded else 0.0


def judge_plan(
    text: str,
    task: BenchmarkTrip,
    facts: BenchmarkFacts,
    case: Case,
) -> Judgement:
    """Judges the plan in a model's text by the entries of its case.

    Raises:
        TaskError: a constraint of no kind that is known.
    """
    entries = Entries(case)
    try:
        plan = parse_plan(text, places=entries.places)
    except PlanError as error:
        return _no_plan(task, str(error))
    trip = PlannedTrip(plan, task.num_days, facts, entries)
    rules = [rule for rules in DIMENSIONS.values() for rule in rules]
    return Judgement(
        tuple(Verdict(rule.__name__, tuple(rule(trip))) for rule in rules),
        (*named_verdicts(task, _held(plan)), *_budget(trip, task)),
        delivered=True,
        grounded=_is_grounded(trip),
    )


def _no_plan(task: BenchmarkTrip, reason: str) -> Judgement:
    budget = () if task.max_budget is None else ("budget",)
    return Judgement(
        tuple(Verdict(rule.__name__, (reason,)) for rules in DIMENSIONS.values() for rule in rules),
        tuple(Verdict(name, (reason,)) for name in (*task.required_names, *budget)),
        delivered=False,
        grounded=False,
    )


def _held(plan: Plan) -> dict[EntryKind, set[str]]:
    """The names in the plan by what they are in it."""
    rides = [(_MODES.get(ride.details.mode.lower()), ride.details.number) for ride in plan.of(INTERCITY)]
    return {
        "train": {number for kind, number in rides if kind == "train"},
        "flight": {number for kind, number in rides if kind == "flight"},
        "restaurant": {meal.details.name for meal in plan.of(MEAL)},
        "attraction": {visit.details.name for visit in plan.of(ATTRACTION)},
        "hotel": {day.stay.name for day in plan.days if day.stay is not None},
    }


def _budget(trip: PlannedTrip, task: BenchmarkTrip) -> tuple[Verdict, ...]:
    if task.max_budget is None:
        return ()
    spent = stated_cost(trip)
    return (Verdict("budget", () if spent <= task.max_budget else (f"{spent:g} is more than {task.max_budget:g}",)),)


def _is_grounded(trip: PlannedTrip) -> bool:
    entries = trip.entries
    tables: Mapping[str, Mapping[str, object]] = {ATTRACTION: entries.attractions, MEAL: entries.restaurants}
    return all(
        any(
            activity.details.name in tables.get(activity.type, {})
            or (activity.type == INTERCITY and entries.prices(activity.details.number) is not None)
            for activity in day.activities
        )
        for day in trip.plan.days[:-1] or trip.plan.days
    )
