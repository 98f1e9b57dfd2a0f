"""Every rule's verdict on a plan, and the benchmark's scores of them."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, get_args

from opd_envs.deepplanning.database import Case
from opd_envs.deepplanning.scoring import rules, times
from opd_envs.deepplanning.scoring.plan import ATTRACTION, INTERCITY, MEAL, Plan
from opd_envs.deepplanning.scoring.report import parse_plan
from opd_envs.deepplanning.scoring.trip import Entries, PlannedTrip, Rule
from opd_envs.deepplanning.task import BenchmarkTrip, EntryKind, entry_kind
from opd_envs.travel.itinerary import Verdict
from opd_envs.travel.plan import PlanError
from opd_envs.travel.task import TaskError

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


def judge_plan(text: str, task: BenchmarkTrip, case: Case) -> Judgement:
    """Judges the plan in a model's text by the entries of its case.

    Raises:
        TaskError: a constraint of no kind that is known.
    """
    entries = Entries(case)
    try:
        plan = parse_plan(text, places=entries.places)
    except PlanError as error:
        return _no_plan(task, str(error))
    trip = PlannedTrip(plan, task, entries)
    rules = [rule for rules in DIMENSIONS.values() for rule in rules]
    return Judgement(
        tuple(Verdict(rule.__name__, tuple(rule(trip))) for rule in rules),
        (*_named_verdicts(task, _held(plan)), *_budget(trip, task)),
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
    spent = rules.stated_cost(trip)
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


def _named_verdicts(task: BenchmarkTrip, held: Mapping[EntryKind, Collection[str]]) -> list[Verdict]:
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


def _kind(constraint: str) -> EntryKind:
    kind = entry_kind(constraint)
    if kind is None:
        raise TaskError(f"required_names.{constraint}: must begin with {', '.join(get_args(EntryKind))}")
    return kind
