"""One reader of data: each row of a file by the columns that it has."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from opd.data.files import BATCH_ROWS, Record, Unreadable, files_of, raw_rows
from opd.data.messages import plain, with_text_arguments
from opd.experiment.algorithm import MESSAGES, TOOLS
from opd.rewards.scorers import last_boxed

if TYPE_CHECKING:
    from datasets import Dataset

PROMPT = "prompt"
MEND_ROWS = "take these rows out of the file, or mend them"
_TEXT_ALONE = "models are trained on text alone: drop what is no text, leave these rows out, or name a column of texts (data.columns.prompt)"
_CONVERSATIONS = (MESSAGES, "conversations", "conversation")
_QUESTIONS = (PROMPT, "question", "problem", "instruction", "query")
_TRUTHS = ("ground_truth", "answer", "final_answer", "target")
_ANSWERS = ("completion", "response", "answer", "output", "target", "solution")
_LISTED = re.compile(r"\s*\[\s*\{\s*['\"](role|content|from|value)['\"]\s*:")
_ROLE_OF = {"human": "user", "gpt": "assistant", "bot": "assistant", "function_response": "tool", "observation": "tool"}


class RowFault(ValueError):
    """A row that cannot be used; the text says why, alike for all such rows, and `fix` what helps besides other columns."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.fix = fix


class How(NamedTuple):
    """Columns that a reader takes from a row.

    Attributes:
        wants: `prompt` for prompts with ground truths, `messages` for conversations.
        prompt, answer: columns, or COLUMN.FIELD; empty: found by their names.
    """

    wants: str = PROMPT
    prompt: str = ""
    answer: str = ""


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column, or of COLUMN.FIELD; None where there is none."""
    if name in row:
        return row[name]
    value: Any = row
    for field in name.split("."):
        value = value.get(field) if isinstance(value, Mapping) else None
    return value


def read_row(row: Record, how: How, *, source: str, number: int) -> Record:
    """Return a row in verl's columns, or with `messages` where conversations are wanted; its other columns stay.

    Args:
        source: the data source of a row that names none.
        number: of the row in its file, the index of a row that has none.

    Raises:
        RowFault: it has no prompt, or no answer where a conversation is wanted.
    """
    if (
        isinstance(row.get(PROMPT), list) and "reward_model" in row
    ):  # rows in verl's layout keep it next to files of another
        has = [name if name.partition(".")[0] in row else "" for name in (how.prompt, how.answer)]
        how = how._replace(prompt=has[0], answer=has[1])
    wants_answers = how.wants == MESSAGES
    known = (*_CONVERSATIONS, *_QUESTIONS) if wants_answers else (*_QUESTIONS[:1], *_CONVERSATIONS, *_QUESTIONS[1:])
    asks = how.prompt or next((name for name in known if row.get(name) is not None), "")
    value = value_at(row, asks)
    if value is None:
        lacks = f"have no value in the column {asks!r}" if asks else f"have none of the columns {', '.join(known)}"
        raise RowFault(f"{lacks} (they have {', '.join(row) or 'none'})")
    messages = _messages(value)
    if isinstance(value, str) and asks == "instruction" and row.get("input"):
        messages[0]["content"] += f"\n\n{row['input']}"
    if isinstance(system := row.get("system"), str) and system and messages and messages[0].get("role") != "system":
        messages.insert(0, {"role": "system", "content": system})
    is_whole = bool(messages) and messages[-1].get("role") == "assistant"
    taken = {PROMPT, MESSAGES} | ({asks} if isinstance(value, list) else set())
    rest = {name: item for name, item in row.items() if name not in taken}
    if wants_answers:
        if not is_whole or how.answer:
            messages += _answer(row, how, messages)
        if messages and messages[0]["role"] == "assistant":
            why = "begin with the assistant, and a conversation begins with a system or user message"
            raise RowFault(why, MEND_ROWS)
        return {**rest, MESSAGES: messages, **_tools(row)}
    if is_whole and asks in _CONVERSATIONS:
        messages = messages[:-1]
    info = row.get("extra_info")
    return {
        **rest,
        "data_source": row.get("data_source") or source,
        PROMPT: messages,
        "reward_model": _reward(row, how),
        "extra_info": info if isinstance(info, Mapping) else {"index": number},
    }


def _messages(value: Any) -> list[Record]:
    """Return messages from a text, a list of messages, their JSON text, or ShareGPT's `from` and `value`."""
    if isinstance(value, str) and _LISTED.match(value):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise RowFault("have a list of messages as text that is no JSON; write it with json.dumps") from error
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        kind = f"a list of {type(value[0]).__name__}" if isinstance(value, list) and value else type(value).__name__
        raise RowFault(f"have {kind} as prompt, which is a text or a list of messages with role and content")
    if any(not isinstance(message.get("role") or message.get("from"), str) for message in value):
        raise RowFault("have a message without role and content")
    named = [
        message if message.get("role") else
        {"role": _ROLE_OF.get(str(message["from"]), message["from"]), "content": message.get("value")}
        for message in value
    ]  # fmt: skip
    try:
        return plain(named)
    except ValueError as error:
        raise RowFault(f"cannot be read: {error}", _TEXT_ALONE) from error


def _answer(row: Record, how: How, messages: Sequence[Record]) -> list[Record]:
    """Return the assistant's turn that a column holds, for messages that do not end with one."""
    names = (how.answer,) if how.answer else _ANSWERS
    said = next((value for name in names if (value := value_at(row, name)) is not None), None)
    if said is None:
        end = f"the last message is of the role {messages[-1]['role']!r}, not assistant" if messages else "no message"
        raise RowFault(f"have no answer: {end}, and none of the columns {', '.join(names)} is there")
    return _messages(said) if isinstance(said, list) else [{"role": "assistant", "content": str(said)}]


def _tools(row: Record) -> Record:
    """Return the tools of a conversation as JSON text in their column; null for a list of none."""
    tools = row.get(TOOLS) or None
    try:
        listed = json.loads(tools) if isinstance(tools, str) else tools
    except ValueError:
        listed = tools  # a text, and no list
    if listed in (None, []):
        return dict.fromkeys({TOOLS} & row.keys())
    if not isinstance(listed, list) or not all(isinstance(tool, Mapping) for tool in listed):
        raise RowFault(
            f"have {TOOLS!r} that are no list of objects, nor one as JSON text (json.dumps([...]), null without tools)",
            MEND_ROWS,
        )
    return {TOOLS: tools if isinstance(tools, str) else json.dumps(tools)}


def _reward(row: Record, how: How) -> Record:
    reward = row.get("reward_model")
    if reward is not None and not how.answer:
        if not isinstance(reward, Mapping) or "ground_truth" not in reward:
            raise RowFault("have a reward_model without ground_truth")
        return dict(reward)
    if how.answer and value_at(row, how.answer) is None and how.answer.partition(".")[0] not in row:
        raise RowFault(f"have no column {how.answer!r} (they have {', '.join(row)})")
    names = (how.answer,) if how.answer else _TRUTHS
    truth = next((value for name in names if (value := value_at(row, name)) is not None), None)
    if truth is None and isinstance(solution := row.get("solution"), str):
        truth = last_boxed(solution)
    return {"style": "rule", "ground_truth": _truth(truth)}


def _truth(value: Any) -> Any:
    """Return a ground truth: what follows `####` in GSM8K's answers, the one item of a list, a whole number as text."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and "####" in value:
        value = value.rpartition("####")[2].strip().replace(",", "")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return None if isinstance(value, str) and not value.strip() else value


def read_dataset(path: str, how: How) -> "Dataset":
    """Return the rows of a file or folder, of which `opd.inputs` has looked at each.

    Raises:
        Unreadable, RowFault: see `raw_rows` and `read_row`.
    """
    from datasets import Dataset

    rows = read_rows(path, how)
    return joined([Dataset(_table(batch)) for batch in iter(lambda: list(islice(rows, BATCH_ROWS)), [])])


def read_rows(path: str, how: How) -> Iterator[Record]:
    """Yield the rows of `read_dataset` one by one."""
    for file in files_of(Path(path)):
        for number, (place, row) in enumerate(raw_rows(file)):
            try:
                yield read_row(row or {}, how, source=file.stem, number=number)
            except RowFault as error:
                rule = f"{place} of {file} (counted from 1): such rows {error}"
                raise Unreadable(rule, error.fix or MEND_ROWS) from error


def _table(rows: Sequence[Record]) -> pa.Table:
    """Return rows as a table; values of mixed types become JSON text, as do the arguments of tool calls."""
    rows = [
        row
        | {
            name: with_text_arguments(row[name])
            for name in (PROMPT, MESSAGES)
            if any(m.get("tool_calls") for m in row.get(name) or ())
        }
        for row in rows
    ]
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    return pa.table({name: _array(values) for name, values in columns.items()})


def _array(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, OverflowError):
        if all(isinstance(value, Mapping) for value in values):
            names = dict.fromkeys(name for value in values for name in value)
            return pa.StructArray.from_arrays(
                [_array([value.get(name) for value in values]) for name in names], list(names)
            )
        return pa.array([value if value is None or isinstance(value, str) else json.dumps(value) for value in values])


def joined(tables: "Sequence[Dataset]") -> "Dataset":
    """Return the rows of all tables; where their types differ, values of mixed types become text.

    One such field is `extra_info.index`: a row's number in most prepared files, a UUID in DAPO's. Another is a ground truth
    that is 7 here and "7" there; scorers read its text.
    """
    from datasets import Dataset, concatenate_datasets

    try:
        return tables[0] if len(tables) == 1 else concatenate_datasets(list(tables))
    except (ValueError, TypeError, pa.ArrowException):
        return Dataset(_table([row for table in tables for row in table]))
