"""Rows of agent tasks: verl's columns, with an episode's facts in `extra_info`."""

import pyarrow as pa

from opd.data.rows import SCHEMA, Row

_EXTRA_INFO = pa.struct(
    [
        *SCHEMA.field("extra_info").type.fields,
        ("language", pa.string()),
        ("grade", pa.int64()),  # null: not one of ours
        ("database_id", pa.string()),
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
    **facts: object,
) -> Row:
    """Return a row; `index` must be unique in its file: it orders rows and seeds their sampling.

    `facts` are the further fields of `AGENT_SCHEMA`; an absent field is null.
    """
    common = {"split": split, "index": index, "data_source": data_source, "problem_id": problem_id}
    return {
        "data_source": data_source,
        "prompt": messages,
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": common | facts,
    }
