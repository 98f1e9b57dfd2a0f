"""What the smoke run on DeepPlanning's layout needs: invented cases as published, imported and prepared, and two tiny planners.

The planners look a hotel's price up with the benchmark's tool and write a two-day report that keeps all of its rules. The student
would rather guess the price, which costs it one rule: that is what distillation has to change. Query and price share their last
digits, and the run is validated on the prompts that it trains on: it shows that everything works together, not that a model learns to plan.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tests.agent_evidence.lessons import conversations
from tests.agent_evidence.models import STUDENT_RECIPE, TEACHER_RECIPE, Recipe, build_model, teach
from tests.agent_evidence.play import make_environment
from tests.agent_evidence.settings import settings
from tests.agent_evidence.tokenizer import build_tokenizer
from tests.opd_envs.deepplanning.published import DATE, WORDS, write_queries, write_zip
from tests.opd_envs.deepplanning.published import query as published_query
from transformers import PreTrainedTokenizerBase

from opd.agent.dialogue import Dialogue
from opd.agent.settings import AgentSettings
from opd_envs.deepplanning.__main__ import main as import_main
from opd_envs.deepplanning.parts import ARCHIVES, TOOLSETS
from opd_envs.deepplanning.prepare import main as prepare
from opd_envs.preparing import TRAIN_FILE
from opd_envs.travel.entries import LANGUAGES, Language

DATA, DATABASE, ROWS = "data", "database", "data/agent_processed"
CASES = [str(number) for number in range(10, 90)]
"""Of each language; the inn of case 42 costs 3042."""
MAX_WORDS = 1100
MAX_PROMPT_TOKENS, MAX_RESPONSE_TOKENS, MAX_REPLY_TOKENS, MAX_TURNS = 1024, 1024, 384, 3
BATCH_SIZE = 16
RECIPES = {
    "teacher": replace(TEACHER_RECIPE, batch_size=BATCH_SIZE, num_steps=800),
    # A plan is 540 tokens long: after 60 habit steps at twice the rate four sampled plans of ten could not be read, and distillation
    # from there went either way (reverse KL 3.6 -> 1.3 once, 3.6 -> 3.6 the next time).
    "student": replace(
        STUDENT_RECIPE, batch_size=BATCH_SIZE, num_steps=600, num_habit_steps=300, habit_learning_rate=3e-4
    ),
}
RETURN = {"route_index": "1", "segment_index": "1", "train_no": "G12"}
_MEALS = {"en": ("Lunch", "Dinner"), "zh": ("午餐", "晚餐")}


def write_world(
    folder: Path,
    *,
    cases: Sequence[str] = CASES,
    languages: Sequence[Language] = LANGUAGES,
    archive: Path | None = None,
) -> Path:
    """Archives, the database imported from them and the rows prepared with it, in `folder`; packed too, into `archive`."""
    data = folder / DATA
    for language in languages:
        write_zip(data / ARCHIVES[language], language, cases=cases, change=lambda members: _add_return(members))
        constraint = {"constraint_type": "superlative_cheapest_star", "hotel_name": WORDS[language]["inn"]}
        write_queries(
            data, language, [published_query(language, case, hotel_cheapest_star=constraint) for case in cases]
        )
    packed = [] if archive is None else ["--archive", str(archive)]
    if import_main(["import", "--data-dir", str(data), "--out", str(folder / DATABASE), *packed]):
        raise ValueError(f"{data}: the import failed")
    prepare(["--data-dir", str(data), "--database-dir", str(folder / DATABASE)])
    return folder


def _add_return(members: dict[str, bytes]) -> None:
    """A train back, at noon: the first row of each timetable the other way round."""
    for name, data in members.items():
        if not name.endswith("trains/trains.csv"):
            continue
        header, first = (line.split(",") for line in data.decode().splitlines()[:2])
        row = dict(zip(header, first, strict=True))
        back = row | RETURN | {
            "dep_datetime": f"{DATE} 12:00:00", "arr_datetime": f"{DATE} 13:30:00",
            **{f"{a}_{what}": row[f"{b}_{what}"] for what in ("station_code", "station_name") for a, b in (("dep", "arr"), ("arr", "dep"))},
            "origin_city": row["destination_city"], "destination_city": row["origin_city"],
        }  # fmt: skip
        members[name] = data + (",".join(back[column] for column in header) + "\n").encode()


def call(language: str) -> str:
    """The turn that asks for the hotels."""
    arguments = {"destination": WORDS[language]["goal"], "checkinDate": DATE, "checkoutDate": DATE}
    text = json.dumps({"name": "query_hotel_info", "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


def report(language: str, price: int) -> str:
    """The turn that tells the plan; it keeps every rule where `price` is the inn's."""
    w, (lunch, dinner) = WORDS[language], _MEALS[language]
    home, goal = (w["station"].format(w[name]) for name in ("home", "goal"))
    mill, diner, grill, inn = (w[name] for name in ("mill", "diner", "grill", "inn"))
    total = 150.5 + 9 + 40 + 12 + 60 + 80 + 15 + price + 150.5
    return f"""<plan>
Day 1:
Current City: from {w["home"]} to {w["goal"]}
Accommodation: {inn}, ¥{price}/room/night
08:00-09:30 | travel_intercity_public | train G11, {home} - {goal}, ¥150.5/person
09:30-09:43 | travel_city | {goal} - {mill}, 4km, 13min, ¥9
09:43-11:43 | attraction | {mill}, ¥40/person
11:43-11:55 | travel_city | {mill} - {diner}, 3km, 12min, ¥12
11:55-12:55 | meal | {lunch}, {diner}, ¥60/person
12:55-17:00 | buffer | x
17:00-17:11 | travel_city | {diner} - {grill}, 2km, 11min, ¥0
17:11-18:11 | meal | {dinner}, {grill}, ¥80/person
18:11-18:26 | travel_city | {grill} - {inn}, 6km, 15min, ¥15
18:26-23:00 | hotel | x, {inn}
Day 2:
Current City: from {w["goal"]} to {w["home"]}
Accommodation: -
11:30-11:41 | travel_city | {inn} - {goal}, 2km, 11min, ¥0
12:00-13:30 | travel_intercity_public | train G12, {goal} - {home}, ¥150.5/person
Total Estimated Budget: {total:g}
</plan>"""


def language_of(row: Mapping[str, Any]) -> str:
    """Of a prepared row."""
    return str(row["extra_info"]["language"])


def looked_up(row: Mapping[str, Any], reply: str) -> str:
    """The right next turn: the call, then the plan with the price that the reply has."""
    language = language_of(row)
    if not reply:
        return call(language)
    (price,) = (hotel["price"] for hotel in json.loads(reply) if hotel["name"] == WORDS[language]["inn"])
    return report(language, round(float(price)))


def guessed(rng: random.Random, row: Mapping[str, Any]) -> str:
    """The plan with a price out of the air."""
    return report(language_of(row), 3000 + rng.randint(10, 99))


def settings_of(database: Path) -> AgentSettings:
    """As the smoke run's spec has them."""
    found = settings(database)
    limits = replace(
        found.limits,
        max_prompt_tokens=MAX_PROMPT_TOKENS,
        max_response_tokens=MAX_RESPONSE_TOKENS,
        max_assistant_turns=MAX_TURNS,
    )
    return replace(found, toolset=TOOLSETS["en"], max_reply_tokens=MAX_REPLY_TOKENS, limits=limits)


def make_tokenizer(rows: Sequence[Mapping[str, Any]]) -> PreTrainedTokenizerBase:
    """Its words are those of the prompts, the calls and the plans."""
    texts = ["system\nuser\nassistant\n"]
    for row in rows:
        texts += [message["content"] for message in row["prompt"]]
        texts += [call(language_of(row)), report(language_of(row), 3000)]
    return build_tokenizer(texts, MAX_WORDS)


def make_lessons(
    folder: Path, rows: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[Dialogue], list[Dialogue]]:
    """Right conversations over the imported database, and those that guess."""
    tokenizer.save_pretrained(folder / "tokenizer")
    environment = make_environment(folder / "tokenizer", settings_of(folder / DATABASE))
    rng = random.Random(0)
    try:
        right = conversations(environment, tokenizer, rows, looked_up)
        wrong = conversations(environment, tokenizer, rows, lambda row, reply: guessed(rng, row))
    finally:
        environment.close()
    return right, wrong


def make_assets(folder: Path, device: str = "cuda") -> None:
    """Database, rows, `student` and `teacher` in `folder`; one that is complete is left as it is."""
    if (folder / "done").exists():
        return
    write_world(folder)
    rows = pq.read_table(folder / ROWS / TRAIN_FILE).to_pylist()
    tokenizer = make_tokenizer(rows)
    right, wrong = make_lessons(folder, rows, tokenizer)
    print(f"{len(right)} lessons of up to {max(len(lesson.ids) for lesson in right)} tokens", flush=True)
    for name, recipe in RECIPES.items():
        _make_model(folder / name, recipe, right, wrong, tokenizer, device)
    (folder / "done").touch()


def _make_model(
    folder: Path,
    recipe: Recipe,
    right: Sequence[Dialogue],
    wrong: Sequence[Dialogue],
    tokenizer: PreTrainedTokenizerBase,
    device: str,
) -> None:
    losses: list[float] = []
    model = build_model(recipe, tokenizer, seed=0).to(device)
    teach(
        model, right, wrong, recipe, pad=tokenizer.pad_token_id, seed=0, on_step=lambda _step, loss: losses.append(loss)
    )
    model.cpu().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{folder.name}: {model.num_parameters()} weights, loss {losses[0]:.3f} to {losses[-1]:.4f}", flush=True)


if __name__ == "__main__":
    make_assets(Path(sys.argv[1]))
