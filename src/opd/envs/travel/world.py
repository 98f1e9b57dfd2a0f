"""The invented world behind the database: cities, places and timetables as a function of a seed."""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from opd.envs.travel import words
from opd.envs.travel.entries import NEVER_CLOSED, City, Language, Mode, Place, Trip
from opd.envs.travel.episode import PRICE_RANGES
from opd.envs.travel.geography import city_distance_km
from opd.envs.travel.words import Word

MAP_KM = 2000
CITY_RADIUS_M = 8000
HOTELS_PER_CITY = 12
RESTAURANTS_PER_CITY = 16
ATTRACTIONS_PER_CITY = 12
NEIGHBOURS_BY_TRAIN = 8
FLIGHTS_PER_CITY = 6
"""Far cities that a city has flights to; the flights back come with them."""
TRIPS_PER_PAIR = 4
TRAIN_KM_PER_MINUTE = 4
FLIGHT_KM_PER_MINUTE = 12
ALL_WEEKDAYS = 0b1111111
MAX_CITIES = len(words.CITY_HEADS) * len(words.CITY_TAILS)


class Named(NamedTuple):
    """An entry with its words in both languages; the record itself holds no text of either."""

    record: Place
    name: Word
    category: Word
    features: tuple[Word, ...]


class World(NamedTuple):
    """Everything that both language files hold."""

    cities: list[City]
    """Named in English."""
    city_names: list[Word]
    places: list[Named]
    trips: list[Trip]

    def cities_in(self, language: Language) -> Iterator[City]:
        """The cities named in a language."""
        for city, name in zip(self.cities, self.city_names, strict=True):
            yield city._replace(language=language, name=getattr(name, language))

    def places_in(self, language: Language) -> Iterator[Place]:
        """The places with their texts in a language."""
        for named in self.places:
            yield named.record._replace(
                name=getattr(named.name, language),
                category=getattr(named.category, language),
                features=tuple(getattr(feature, language) for feature in named.features),
            )


def make_world(*, seed: int, num_cities: int) -> World:
    """The world of a seed; the same on every machine and Python version that this project supports.

    Raises:
        ValueError: fewer than 2 cities, or more than there are names for.
    """
    if not 2 <= num_cities <= MAX_CITIES:
        raise ValueError(f"num_cities = {num_cities}: must be between 2 and {MAX_CITIES}, the names there are")
    rng = random.Random(f"{seed}:cities")
    names = _city_names(rng, num_cities)
    cities = [
        City(index, "en", name.en, rng.randrange(MAP_KM), rng.randrange(MAP_KM)) for index, name in enumerate(names)
    ]
    places = [named for city in cities for named in _places(random.Random(f"{seed}:places:{city.id}"), city)]
    trips = _trips(random.Random(f"{seed}:trips"), cities)
    return World(cities, names, places, trips)


def _city_names(rng: random.Random, num: int) -> list[Word]:
    every = [Word(head.en + tail.en, head.zh + tail.zh) for head in words.CITY_HEADS for tail in words.CITY_TAILS]
    return rng.sample(every, num)


def _price(rng: random.Random, kind: str) -> int:
    return rng.randint(*PRICE_RANGES[kind])


def _places(rng: random.Random, city: City) -> Iterator[Named]:
    """A city's hotels, restaurants and attractions; no name twice in a city, whatever its kind."""
    rows = (
        ("hotel", HOTELS_PER_CITY, words.HOTEL_TAILS),
        ("restaurant", RESTAURANTS_PER_CITY, words.RESTAURANT_TAILS),
        ("attraction", ATTRACTIONS_PER_CITY, words.ATTRACTION_KINDS),
    )
    for kind, num, tails in rows:
        every = [(head, tail) for head in words.PLACE_HEADS for tail in tails]
        for offset, (head, tail) in enumerate(rng.sample(every, num)):
            name = Word(f"{head.en} {tail.en}", head.zh + tail.zh)
            bare = Place(
                kind=kind,  # type: ignore[arg-type]  # a literal of the table above
                id=city.id * num + offset,
                city_id=city.id,
                name="",
                x_m=rng.randrange(2 * CITY_RADIUS_M),
                y_m=rng.randrange(2 * CITY_RADIUS_M),
                price=_price(rng, kind),
                category="",
                stars=0,
                features=(),
                opens=0,
                closes=24 * 60,
                closed_weekday=NEVER_CLOSED,
                visit_minutes=0,
            )
            yield _DETAILS[kind](rng, bare, name, tail)


def _hotel(rng: random.Random, bare: Place, name: Word, _: Word) -> Named:
    features = rng.sample(words.HOTEL_FEATURES, rng.randint(1, 4))
    ordered = tuple(feature for feature in words.HOTEL_FEATURES if feature in features)
    return Named(bare._replace(stars=rng.randint(2, 5)), name, Word("", ""), ordered)


def _restaurant(rng: random.Random, bare: Place, name: Word, _: Word) -> Named:
    record = bare._replace(
        opens=rng.choice((9, 10, 11)) * 60,
        closes=rng.choice((20, 21, 22)) * 60,
        closed_weekday=_closed_weekday(rng, share=0.2),
    )
    return Named(record, name, rng.choice(words.CUISINES), ())


def _attraction(rng: random.Random, bare: Place, name: Word, kind: Word) -> Named:
    record = bare._replace(
        opens=rng.choice((8, 9, 10)) * 60,
        closes=rng.choice((17, 18, 19, 21)) * 60,
        closed_weekday=_closed_weekday(rng, share=0.4),
        visit_minutes=rng.choice((45, 60, 90, 120)),
    )
    return Named(record, name, kind, ())


_DETAILS = {"hotel": _hotel, "restaurant": _restaurant, "attraction": _attraction}


def _closed_weekday(rng: random.Random, *, share: float) -> int:
    return rng.randrange(7) if rng.random() < share else NEVER_CLOSED


def _trips(rng: random.Random, cities: Sequence[City]) -> list[Trip]:
    """Trains to near cities and flights to far ones, there and back, with numbers that are unique."""
    trains, flights = set(), set()
    for city in cities:
        others = sorted(
            (other for other in cities if other.id != city.id), key=lambda o: (city_distance_km(city, o), o.id)
        )
        near, far = others[:NEIGHBOURS_BY_TRAIN], others[NEIGHBOURS_BY_TRAIN:]
        trains |= {(min(city.id, other.id), max(city.id, other.id)) for other in near}
        chosen = rng.sample(far, min(FLIGHTS_PER_CITY, len(far)))
        flights |= {(min(city.id, other.id), max(city.id, other.id)) for other in chosen}
    return [
        *_timetable(rng, cities, "train", "G", sorted(trains), TRAIN_KM_PER_MINUTE, overhead_minutes=10),
        *_timetable(rng, cities, "flight", "FL", sorted(flights), FLIGHT_KM_PER_MINUTE, overhead_minutes=45),
    ]


def _timetable(
    rng: random.Random,
    cities: Sequence[City],
    mode: Mode,
    prefix: str,
    pairs: Iterable[tuple[int, int]],
    km_per_minute: int,
    *,
    overhead_minutes: int,
) -> Iterator[Trip]:
    """Per direction one trip in each part of the day; the first and the last run every day."""
    next_id = 1000
    for low, high in pairs:
        minutes = overhead_minutes + city_distance_km(cities[low], cities[high]) // km_per_minute
        for start, end in ((low, high), (high, low)):
            for part in range(TRIPS_PER_PAIR):
                departs = (6 + 4 * part) * 60 + 5 * rng.randrange(36)
                departs = min(departs, 24 * 60 - 5 - minutes)  # everything arrives on the day it leaves
                daily = part in (0, TRIPS_PER_PAIR - 1)
                weekdays = ALL_WEEKDAYS if daily else rng.randint(1, ALL_WEEKDAYS)
                yield Trip(
                    mode,
                    next_id,
                    f"{prefix}{next_id}",
                    start,
                    end,
                    departs,
                    departs + minutes,
                    weekdays,
                    _price(rng, mode),
                )
                next_id += 1
