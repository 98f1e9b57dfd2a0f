"""Rows of agent tasks: verl's columns with an episode's facts in `extra_info`, and the rows that are dropped."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from opd.agent.environments import tool_schemas
from opd.data.rows import SCHEMA, Row

_EXTRA_INFO = pa.struct(
    [
        *SCHEMA.field("extra_info").type.fields,
        ("language", pa.string()),
        ("grade", pa.int64()),  # null: not one of ours
        ("database_id", pa.string()),  # null: needs none
        ("episode_seed", pa.int64()),  # null: the database's own prices
        ("case_id", pa.string()),  # null: its database has no part for each task
        ("tool_selection", pa.list_(pa.string())),  # null: all tools are offered
    ]
)
AGENT_SCHEMA = pa.schema([field if field.name != "extra_info" else ("extra_info", _EXTRA_INFO) for field in SCHEMA])


def agent_row(
    ground_truth: str,
    messages: list[dict[str, str]],
    *,
    data_source: str,
    split: str,
    index: int,
    problem_id: str,
    language: str,
    grade: int | None = None,
    database_id: str | None = None,
    episode_seed: int | None = None,
    case_id: str | None = None,
    tool_selection: tuple[str, ...] | None = None,
) -> Row:
    """Return a row; `index` must be unique in its file: it orders rows and seeds their sampling."""
    return {
        "data_source": data_source,
        "prompt": messages,
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {
            "split": split,
            "index": index,
            "data_source": data_source,
            "problem_id": problem_id,
            "language": language,
            "grade": grade,
            "database_id": database_id,
            "episode_seed": episode_seed,
            "case_id": case_id,
            "tool_selection": None if tool_selection is None else list(tool_selection),
        },
    }


class Filtered(NamedTuple):
    """The rows that are kept of each file, in their order, and the number dropped by reason."""

    tables: dict[str, list[Row]]
    dropped: Counter[str]


def filter_rows(
    tables: Mapping[str, Sequence[Row]], *, train_file: str, is_too_long: Callable[[Row], bool] | None = None
) -> Filtered:
    """Drop duplicates within a file, training rows that validation asks too, and prompts beyond the limit.

    Args:
        tables: rows by file.
        train_file: the one of them that is trained on.
        is_too_long: says of a row that its prompt exceeds the limit.
    """
    asked = {_identity(row) for name, rows in tables.items() if name != train_file for row in rows}
    dropped: Counter[str] = Counter()
    kept: dict[str, list[Row]] = {}
    for name, rows in tables.items():
        kept[name] = []
        seen: set[str] = set()
        for row in rows:
            identity = _identity(row)
            if identity in seen:
                dropped["duplicate_task"] += 1
            elif name == train_file and identity in asked:
                dropped["validation_task"] += 1
            elif is_too_long is not None and is_too_long(row):
                dropped["prompt_too_long"] += 1
            else:
                kept[name].append(row)
            seen.add(identity)
    return Filtered(kept, dropped)


def length_rule(tokenizer_path: str, max_prompt_length: int, toolset_of: Callable[[Row], str]) -> Callable[[Row], bool]:
    """Return the rule that a prompt with its tools, through the tokenizer's chat template, exceeds the limit in tokens.

    `toolset_of` names the environment whose tools a row is offered.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)

    @cache
    def offered(toolset: str) -> dict[str, dict[str, Any]]:
        return {schema["function"]["name"]: schema for schema in tool_schemas(toolset)}

    def is_too_long(row: Row) -> bool:
        info = row["extra_info"]
        schemas = offered(toolset_of(row))
        selection = info["tool_selection"] or schemas
        tokens = tokenizer.apply_chat_template(
            row["prompt"],
            tools=[schemas[name] for name in selection],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        return len(tokens) > max_prompt_length

    return is_too_long


def _identity(row: Row) -> str:
    """Return the conversation and the episode: equal ones are the same task."""
    return json.dumps([row["prompt"], row["extra_info"]["episode_seed"]], ensure_ascii=False)
