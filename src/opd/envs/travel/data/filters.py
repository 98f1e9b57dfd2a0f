"""Which agent rows are dropped: asked before, asked in validation too, or too long; counted by reason."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from opd.agent.toolset import DEFAULT_TOOLSET, tool_schemas
from opd.data.rows import Row
from opd.envs.deepplanning.parts import TOOLSETS, part_of


class Filtered(NamedTuple):
    """What is kept of each file, in its order, and what was dropped why."""

    tables: dict[str, list[Row]]
    dropped: Counter[str]


def filter_rows(
    tables: Mapping[str, Sequence[Row]], *, train_file: str, is_too_long: Callable[[Row], bool] | None = None
) -> Filtered:
    """Drops duplicates within a file, training rows that validation asks too, and prompts beyond the limit.

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


def length_rule(tokenizer_path: str, max_prompt_length: int) -> Callable[[Row], bool]:
    """Whether a prompt with its tools, through the tokenizer's chat template, exceeds the limit in tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    offered = {
        toolset: {schema["function"]["name"]: schema for schema in tool_schemas(toolset)}
        for toolset in {DEFAULT_TOOLSET, *TOOLSETS.values()}
    }

    def is_too_long(row: Row) -> bool:
        info = row["extra_info"]
        case_id = info.get("case_id")
        schemas = offered[DEFAULT_TOOLSET if case_id is None else TOOLSETS[part_of(case_id)]]
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
    """What makes two rows the same task: the conversation and, since it decides the answer, the episode."""
    return json.dumps([row["prompt"], row["extra_info"]["episode_seed"]], ensure_ascii=False)
