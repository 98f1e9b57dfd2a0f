"""The invented world of the database: cities, places and timetables as a function of a seed."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from opd_envs import Language
from opd_envs.travel.database import PRICE_RANGES
from opd_envs.travel.entries import NEVER_CLOSED, City, Mode, Place, PlaceKind, Trip, city_distance_km


def _words(text: str) -> Mapping[Language, tuple[str, ...]]:
    en, zh = zip(*(entry.split("=") for entry in text.split(", ")), strict=True)
    return {"en": en, "zh": zh}


# Invented: where a name happens to be a real city's, nothing else about it is, so that no memory answers for the database.
CITY_HEADS = _words(
    "An=安, Bai=白, Bei=北, Chang=长, Chun=春, Da=大, Dan=丹, Dong=东, Feng=凤, Fu=福, Gao=高, Guang=广, Hai=海, He=鹤, "
    "Hong=红, Hua=华, Jin=金, Jing=静, Lan=兰, Lin=林, Long=龙, Mei=梅, Ming=明, Nan=南, Ning=宁, Ping=平, Qing=青, "
    "Rong=荣, Shan=善, Song=松, Tai=泰, Tian=天, Wan=万, Xi=西, Xin=新, Yan=燕, Yong=永, Yun=云, Zhen=镇, Zhong=中"
)
CITY_TAILS = _words(
    "zhou=州, cheng=城, jiang=江, hu=湖, shan=山, yang=阳, quan=泉, ling=岭, he=河, kou=口, tan=滩, yuan=源, pu=浦, an=岸"
)
PLACE_HEADS = _words(
    "Jade=翡翠, Lotus=莲花, Bamboo=竹林, Crane=仙鹤, Dragon=龙吟, Phoenix=凤鸣, Maple=枫叶, Pearl=明珠, River=江畔, "
    "Cloud=云端, Moon=明月, Sunrise=晨曦, Plum=梅园, Orchid=兰亭, Willow=柳岸, Amber=琥珀, Coral=珊瑚, Silver=银杏, "
    "Golden=金桂, Crystal=水晶, Harbor=港湾, Garden=花园, Lantern=灯笼, Peony=牡丹, Pine=青松, Spring=清泉, Swallow=飞燕, "
    "Summit=云峰, Tea=茶香, Velvet=锦绣, West Gate=西门, East Gate=东门, Old Town=古城, Lakeside=湖滨, Star=星空, Wind=清风"
)
HOTEL_TAILS = _words("Hotel=酒店, Inn=客栈, Lodge=山庄, Residence=公寓, Palace=宫酒店, Hostel=青年旅舍")
RESTAURANT_TAILS = _words("Kitchen=小厨, House=饭庄, Table=餐厅, Bistro=小馆, Tavern=酒家, Pavilion=阁")
ATTRACTION_KINDS = _words(
    "Temple=寺, Museum=博物馆, Park=公园, Tower=塔, Gallery=美术馆, Market=集市, Bridge=桥, Zoo=动物园, Theater=剧院, Lake=湖"
)
CUISINES = _words(
    "noodles=面食, hotpot=火锅, seafood=海鲜, vegetarian=素食, barbecue=烧烤, dim sum=点心, Sichuan=川菜, Cantonese=粤菜"
)
HOTEL_FEATURES = _words("breakfast=早餐, parking=停车场, gym=健身房, pool=泳池, pets=可带宠物, laundry=洗衣")


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
MAX_CITIES = len(CITY_HEADS["en"]) * len(CITY_TAILS["en"])


class World(NamedTuple):
    """All entries, in one language."""

    cities: list[City]
    places: list[Place]
    trips: list[Trip]


def make_world(language: Language, *, seed: int, num_cities: int) -> World:
    """Return the world of a seed; the same on every machine and Python version that this project supports.

    Languages differ in words alone.

    Raises:
        ValueError: fewer than 2 cities, or more than there are names for.
    """
    if not 2 <= num_cities <= MAX_CITIES:
        raise ValueError(f"num_cities = {num_cities}: must be between 2 and {MAX_CITIES}, the names there are")
    rng = random.Random(f"{seed}:cities")
    every = [head + tail for head in CITY_HEADS[language] for tail in CITY_TAILS[language]]
    names = rng.sample(every, num_cities)
    cities = [
        City(index, language, name, rng.randrange(MAP_KM), rng.randrange(MAP_KM)) for index, name in enumerate(names)
    ]
    places = [place for city in cities for place in _places(random.Random(f"{seed}:places:{city.id}"), city)]
    return World(cities, places, _trips(random.Random(f"{seed}:trips"), cities))


def _price(rng: random.Random, kind: str) -> int:
    return rng.randint(*PRICE_RANGES[kind])


def _places(rng: random.Random, city: City) -> Iterator[Place]:
    """Yield a city's hotels, restaurants and attractions; no name comes twice in a city."""
    rows: tuple[tuple[PlaceKind, int, Mapping[Language, tuple[str, ...]]], ...] = (
        ("hotel", HOTELS_PER_CITY, HOTEL_TAILS),
        ("restaurant", RESTAURANTS_PER_CITY, RESTAURANT_TAILS),
        ("attraction", ATTRACTIONS_PER_CITY, ATTRACTION_KINDS),
    )
    space = " " if city.language == "en" else ""
    for kind, num, tails in rows:
        every = [(head, tail) for head in PLACE_HEADS[city.language] for tail in tails[city.language]]
        for offset, (head, tail) in enumerate(rng.sample(every, num)):
            x, y = rng.randrange(2 * CITY_RADIUS_M), rng.randrange(2 * CITY_RADIUS_M)
            bare = Place(kind, city.id * num + offset, city.id, head + space + tail, x, y, _price(rng, kind))
            yield bare._replace(**_DETAILS[kind](rng, city.language, tail))


def _hotel(rng: random.Random, language: Language, _: str) -> dict[str, Any]:
    every = HOTEL_FEATURES[language]
    features = rng.sample(every, rng.randint(1, 4))
    return {"stars": rng.randint(2, 5), "features": tuple(feature for feature in every if feature in features)}


def _restaurant(rng: random.Random, language: Language, _: str) -> dict[str, Any]:
    return {
        "opens": rng.choice((9, 10, 11)) * 60,
        "closes": rng.choice((20, 21, 22)) * 60,
        "closed_weekday": _closed_weekday(rng, share=0.2),
        "category": rng.choice(CUISINES[language]),
    }


def _attraction(rng: random.Random, _: Language, kind: str) -> dict[str, Any]:
    return {
        "opens": rng.choice((8, 9, 10)) * 60,
        "closes": rng.choice((17, 18, 19, 21)) * 60,
        "closed_weekday": _closed_weekday(rng, share=0.4),
        "category": kind,
        "visit_minutes": rng.choice((45, 60, 90, 120)),
    }


_DETAILS = {"hotel": _hotel, "restaurant": _restaurant, "attraction": _attraction}


def _closed_weekday(rng: random.Random, *, share: float) -> int:
    return rng.randrange(7) if rng.random() < share else NEVER_CLOSED


def _trips(rng: random.Random, cities: Sequence[City]) -> list[Trip]:
    """Return trains to near cities and flights to far ones, there and back, with unique numbers."""
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
    """Yield one trip in each part of the day per direction; the first and the last run every day."""
    next_id = 1000
    for low, high in pairs:
        minutes = overhead_minutes + city_distance_km(cities[low], cities[high]) // km_per_minute
        for start, end in ((low, high), (high, low)):
            for part in range(TRIPS_PER_PAIR):
                departs = (6 + 4 * part) * 60 + 5 * rng.randrange(36)
                departs = min(departs, 24 * 60 - 5 - minutes)  # everything arrives on the day it leaves
                daily = part in (0, TRIPS_PER_PAIR - 1)
                weekdays = ALL_WEEKDAYS if daily else rng.randint(1, ALL_WEEKDAYS)
                runs = departs, departs + minutes, weekdays, _price(rng, mode)
                yield Trip(mode, next_id, f"{prefix}{next_id}", start, end, *runs)
                next_id += 1
