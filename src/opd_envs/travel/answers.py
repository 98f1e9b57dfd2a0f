"""The right answer to a question, from the database of its episode, and whether a text says it."""

import re

from opd_envs.scoring import last_block
from opd_envs.travel.database import Database
from opd_envs.travel.task import Question

MAX_ANSWER_CHARS = 400
_NUMBER = re.compile(r"\d+")


def right_answer(question: Question, database: Database) -> str:
    """Return the answer as text.

    Raises:
        KeyError: the question was made for another database.
    """
    city = database.known_city(question.city)
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
    destination = database.known_city(question.destination or "")
    trains = [t for t in database.trips(city, destination, "train") if t.runs_on(question.date.weekday())]
    if not trains:
        raise KeyError(f"no train leaves {city.name} for {destination.name} on {question.date}")
    return min(trains, key=lambda train: (train.departs, train.number)).number


def find_answer(text: str, *, final_text: str | None = None) -> str | None:
    """Return the last `<answer>`; a short last turn without tags is the answer itself."""
    block = last_block(text if final_text is None else final_text, "answer")
    if block is None and final_text is not None and "<" not in final_text:
        block = final_text
    block = (block or "").strip()
    return block if 0 < len(block) <= MAX_ANSWER_CHARS else None


def says(answer: str, right: str) -> bool:
    """Return whether an answer is the right text up to case and space, or has the right number and no other."""
    if right.isdigit():
        return [number.lstrip("0") or "0" for number in _NUMBER.findall(answer.replace(",", ""))] == [right]
    return " ".join(answer.strip(" \t\n\"'.。").casefold().split()) == " ".join(right.casefold().split())
