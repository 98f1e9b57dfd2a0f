"""The final answer in a model's text: the last `<answer>` or `<plan>`, parsed, bounded, and never by backtracking."""

import json
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from opd_envs.travel.entries import minutes_of

MAX_BLOCK_CHARS = 100_000
"""A longer plan is refused unread; an honest one of 14 days has some 10,000."""
MAX_ANSWER_CHARS = 400


class PlanError(ValueError):
    """Why a text holds no plan."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


Minutes = Annotated[int, BeforeValidator(lambda value: minutes_of(value) if isinstance(value, str) else value)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Activity(_Part):
    """One thing done on a day: a trip by its number, a sight or a restaurant by its name."""

    type: Literal["train", "flight", "attraction", "meal"]
    name: Name
    start: Minutes
    end: Minutes
    """In minutes from midnight; HH:MM in the text."""


class Day(_Part):
    """One day."""

    day: int
    activities: tuple[Activity, ...] = Field(max_length=30)
    hotel: Name | None = None


class Plan(_Part):
    """A whole plan."""

    days: tuple[Day, ...] = Field(min_length=1, max_length=31)
    total_cost: int


def last_block(text: str, tag: str) -> str | None:
    """What stands in the last `<tag>...</tag>`; None where none closes. Linear in the text."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, end) if end >= 0 else -1
    return None if start < 0 else text[start + len(tag) + 2 : end]


def find_answer(text: str, *, final_text: str | None = None) -> str | None:
    """The last `<answer>`; where the last turn alone is known and holds no tags, the whole of it, if it is short."""
    block = last_block(text if final_text is None else final_text, "answer")
    if block is None and final_text is not None and "<" not in final_text:
        block = final_text
    if block is None:
        return None
    block = block.strip()
    return block if 0 < len(block) <= MAX_ANSWER_CHARS else None


def find_block(text: str, tag: str) -> str:
    """What stands in the last `<tag>`.

    Raises:
        PlanError: no block, or too long a one.
    """
    block = last_block(text, tag)
    if block is None:
        raise PlanError(f"there is no <{tag}>...</{tag}>")
    if len(block) > MAX_BLOCK_CHARS:
        raise PlanError(f"the {tag} has {len(block)} characters, more than {MAX_BLOCK_CHARS}")
    return block


def find_json(text: str, tag: str) -> object:
    """The JSON of the last `<tag>`.

    Raises:
        PlanError: no block, too long a one, or no JSON in it.
    """
    return parse_json(find_block(text, tag), tag)


def parse_json(block: str, tag: str) -> object:
    """The JSON of a block.

    Raises:
        PlanError: it is none.
    """
    try:
        return json.loads(block)
    except RecursionError as error:
        raise PlanError(f"the {tag} is nested too deeply") from error
    except ValueError as error:  # also an integer of more than 4300 digits
        raise PlanError(f"the {tag} is not JSON: {error}") from error


def parse_plan(text: str) -> Plan:
    """The plan in the last `<plan>` block.

    Raises:
        PlanError: no block, no JSON, or not the layout, naming the first field that is wrong.
    """
    value = find_json(text, "plan")
    try:
        return Plan.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise PlanError(f"{'.'.join(map(str, first['loc'])) or 'plan'}: {first['msg']}") from error
