"""Rows of agent tasks: verl's columns, with what the environment needs to know of an episode in `extra_info`."""

import pyarrow as pa

from opd.data.rows import SCHEMA, Row
from opd.envs.travel.data.generate import GeneratedTask
from opd.envs.travel.data.wording import Message, question_messages, trip_messages
from opd.envs.travel.entries import Language
from opd.envs.travel.task import Question, Task, task_text

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
    task: Task,
    messages: list[Message],
    *,
    data_source: str,
    split: str,
    index: int,
    problem_id: str,
    language: Language,
    grade: int | None = None,
    database_id: str | None = None,
    episode_seed: int | None = None,
    case_id: str | None = None,
    tool_selection: tuple[str, ...] | None = None,
) -> Row:
    """One row; `index` must be unique in its file: it orders rows and seeds their sampling."""
    return {
        "data_source": data_source,
        "prompt": messages,
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": task_text(task)},
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


def generated_row(generated: GeneratedTask, *, split: str, index: int, only_needed_tools: bool) -> Row:
    """The row of a generated task."""
    task = generated.task
    ask = question_messages if isinstance(task, Question) else trip_messages
    return agent_row(
        task,
        ask(task, generated.language),  # type: ignore[arg-type]  # chosen by the task's own type
        data_source=f"travel_{generated.language}",
        split=split,
        index=index,
        problem_id=f"g{generated.grade}-{generated.language}-{index}",
        language=generated.language,
        grade=generated.grade,
        database_id=generated.database_id,
        episode_seed=generated.episode_seed,
        tool_selection=generated.tools if only_needed_tools else None,
    )
