"""The right answer to a question, from the database of its episode, and whether a text says it."""

import re

from opd_envs.travel.database import Database
from opd_envs.travel.entries import City
from opd_envs.travel.task import Question

_NUMBER = re.compile(r"\d+")


def right_answer(question: Question, database: Database) -> str:
    """The answer as text.

    Raises:
        KeyError: the question names what the database does not have: it was made for another one.
    """
    city = _city(database, question.city)
    if question.about == "price":
        place = database.place(city, question.name or "")
        if place is None:
            raise KeyError(f"the question names {question.name!r} in {city.name}, which the database does not have")
        return str(place.price)
    if question.about == "cheapest_hotel":
        hotels = [hotel for hotel in database.places(city, "hotel") if hotel.stars >= (question.min_stars or 0)]
        if not hotels:
            raise KeyError(f"{city.name} has no hotel of {question.min_stars} stars")
        return min(hotels, key=lambda hotel: (hotel.price, hotel.name)).name
    assert question.date is not None
    destination = _city(database, question.destination or "")
    trains = [t for t in database.trips(city, destination, "train") if t.runs_on(question.date.weekday())]
    if not trains:
        raise KeyError(f"no train leaves {city.name} for {destination.name} on {question.date}")
    return min(trains, key=lambda train: (train.departs, train.number)).number


def says(answer: str, right: str) -> bool:
    """Whether an answer is the right one: the same text up to case and space, or for a number the only number in it."""
    if right.isdigit():
        return [number.lstrip("0") or "0" for number in _NUMBER.findall(answer.replace(",", ""))] == [right]
    return " ".join(answer.strip(" \t\n\"'.。").casefold().split()) == " ".join(right.casefold().split())


def _city(database: Database, name: str) -> City:
    city = database.city(name)
    if city is None:
        raise KeyError(f"the question names the city {name!r}, which the database does not have")
    return city
