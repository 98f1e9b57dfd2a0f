"""One reader of data: Parquet, JSON lines, JSON, CSV and folders of them, each row by the columns that it has."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from opd.data.messages import plain, with_text_arguments
from opd.experiment.algorithm import MESSAGES, TOOLS
from opd.rewards.scorers import last_boxed

if TYPE_CHECKING:
    from datasets import Dataset

SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
_PACKED = (".gz", ".zst", ".bz2", ".xz", ".zip")
_OTHER_DATA = (".tsv", ".ndjson", ".arrow")
PROMPT = "prompt"
Record = dict[str, Any]
_CONVERSATIONS = (MESSAGES, "conversations", "conversation")
_QUESTIONS = (PROMPT, "question", "problem", "instruction", "query")
_TRUTHS = ("ground_truth", "answer", "final_answer", "target")
_ANSWERS = ("completion", "response", "answer", "output", "target", "solution")
_ROLE_OF = {"human": "user", "gpt": "assistant", "bot": "assistant", "function_response": "tool", "observation": "tool"}
_SPLITS = ("train", "validation", "valid", "dev", "test")
_BATCH_ROWS = 16_384
_LFS_POINTER = b"version https://git-lfs"


class Unreadable(ValueError):
    """A file that cannot be read on, with the way out."""

    def __init__(self, rule: str, fix: str) -> None:
        super().__init__(rule)
        self.rule, self.fix = rule, fix


class RowFault(ValueError):
    """A row that cannot be used; the text says why, alike for all such rows."""


class How(NamedTuple):
    """Columns that a reader takes from a row.

    Attributes:
        wants: `prompt` for prompts with ground truths, `messages` for conversations.
        prompt, answer: columns, or COLUMN.FIELD; empty: found by their names.
    """

    wants: str = PROMPT
    prompt: str = ""
    answer: str = ""


def files_of(path: Path) -> list[Path]:
    """Return the files that a path names: itself, or the files of a folder in the order of their names.

    Raises:
        Unreadable: there is none, or a folder mixes splits.
    """
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.name[0] not in "._")
        splits = {word for file in found for word in _SPLITS if re.match(rf"{word}(?![a-z])", file.stem.lower())}
        names = ", ".join(str(file) for file in found[:5])
        if len(splits) > 1:
            rule = f"the folder holds the splits {', '.join(sorted(splits))}, and all its files would be read"
            raise Unreadable(rule, f"name the files of one split, of [{names}]")
        if unread := sorted(file.name for file in path.iterdir() if _is_unread(file)):
            rule = f"the folder also has data that are not read: {', '.join(unread[:5])}"
            raise Unreadable(rule, f"unpack or write them as {', '.join(SUFFIXES)}, or take them out of the folder")
        if not found:
            inside = sorted(file.name for file in path.iterdir() if file.is_dir() and any(file.glob("*")))[:5]
            raise Unreadable(
                f"the folder has no file that ends in {', '.join(SUFFIXES)}",
                f"name one of its folders: {', '.join(inside)}" if inside else "name a folder with such files",
            )
        return found
    if not path.exists():
        near = sorted(p.name for p in path.parent.iterdir() if p.suffix in SUFFIXES) if path.parent.is_dir() else []
        there = f"; {path.parent} has {', '.join(near[:5])}" if near else ""
        raise Unreadable(f"there is no such file{there}", f"name a file that is there (data.dir, {path.parent})")
    if path.suffix not in SUFFIXES:
        write = 'rename it if it is one of these (a .csv may have tabs), or write one {"prompt": "..."} a line to a .jsonl file'
        fix = "unpack it first" if path.suffix in _PACKED else write
        raise Unreadable(f"a data file ends in one of {', '.join(SUFFIXES)}", fix)
    return [path]


def _is_unread(file: Path) -> bool:
    """Return True for a file of data in another form than a reader takes."""
    packed = Path(file.stem) if file.suffix in _PACKED else file
    is_data = packed.suffix.lower() in (*SUFFIXES, *_OTHER_DATA) and file.suffix not in SUFFIXES
    return is_data and file.name[0] not in "._" and file.is_file()


def raw_rows(path: Path, *, limit: int | None = None) -> Iterator[Record | None]:
    """Yield the rows of a file as they are; None for each row beyond the limit, which is only counted.

    Raises:
        Unreadable: damaged, empty, or a line that is no JSON object; its number is named.
    """
    with path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise Unreadable("this is a git-lfs pointer, not the data", "fetch it with `git lfs pull`")
    read = {".parquet": _parquet_rows, ".csv": _csv_rows}.get(path.suffix, _json_rows)
    number = -1
    try:
        for number, row in enumerate(read(path, limit)):
            if row is not None and not isinstance(row, dict):
                rule = f"row {number} (counted from 0) is no object in JSON, but {type(row).__name__}"
                raise Unreadable(rule, "write one JSON object a line, or a list of them")
            yield None if limit is not None and number >= limit else row
    except UnicodeDecodeError as error:
        raise Unreadable(f"the file is not UTF-8 text: {error}", "write it in UTF-8") from error
    if number < 0:
        raise Unreadable("the file has no rows", "write it again with rows")


def _parquet_rows(path: Path, limit: int | None) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            num = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                within = batch.num_rows if limit is None else max(0, min(batch.num_rows, limit - num))
                yield from batch.slice(0, within).to_pylist()
                yield from [None] * (batch.num_rows - within)
                num += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        rule = f"the file cannot be read as Parquet: {' '.join(str(error).split())}"
        raise Unreadable(rule, "copy or write it again; it is cut off or damaged") from error


def _json_rows(path: Path, limit: int | None) -> Iterator[Any]:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        num = 0
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            if limit is not None and num >= limit:
                yield None
                continue
            try:
                row = json.loads(line.rstrip())
            except ValueError as error:
                if not num and path.suffix == ".json":
                    yield from _whole_json(line + file.read())
                    return
                rule = f"line {number} is no object in JSON: {_why(error)}"
                raise Unreadable(rule, "mend the line; write one JSON object a line") from error
            yield from _whole_json(line) if not num and path.suffix == ".json" else [row]
            num += 1


def _why(error: ValueError) -> str:
    """Return the fault of a line of JSON, whose position counts within the line."""
    return f"{error.msg} (character {error.pos + 1})" if isinstance(error, json.JSONDecodeError) else str(error)


def _whole_json(text: str) -> list[Any]:
    """Return the rows of a list, of an object, or of an object with one list of rows such as `data`."""
    try:
        value = json.loads(text)
    except ValueError as error:
        fix = "write one JSON object a line, or one list of them"
        raise Unreadable(f"the file is no JSON: {error}", fix) from error
    if isinstance(value, dict) and len(value) == 1 and isinstance(rows := next(iter(value.values())), list) and rows:
        value = rows if isinstance(rows[0], dict) and "role" not in rows[0] and "from" not in rows[0] else value
    if (
        isinstance(value, dict)
        and value
        and all(isinstance(column, dict) and "0" in column for column in value.values())
    ):
        raise Unreadable("the file is an object of columns, as pandas writes one", 'to_json(FILE, orient="records")')
    return value if isinstance(value, list) else [value]


def _csv_rows(path: Path, _limit: int | None) -> Iterator[Any]:
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        file.seek(0)
        reader = csv.DictReader(file, delimiter=max(",;\t", key=header.count), strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    rule = f"line {reader.line_num} has another number of fields than the header"
                    raise Unreadable(rule, 'put a text with a comma or a line break in quotes: "..."')
                yield {key: text or None for key, text in row.items()}
        except csv.Error as error:
            rule = f"line {reader.line_num} cannot be read as CSV: {error}"
            raise Unreadable(rule, 'put a text with a comma or a line break in quotes: "..."') from error


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
            messages += _answer(row, how)
        tools = row.get(TOOLS)
        more = {} if tools is None else {TOOLS: tools if isinstance(tools, str) else json.dumps(tools)}
        return {**rest, MESSAGES: messages, **more}
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
    if isinstance(value, str):
        try:
            listed = json.loads(value) if value.startswith("[{") else None
        except ValueError:
            listed = None
        value = listed if isinstance(listed, list) else [{"role": "user", "content": value}]
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
        raise RowFault(f"cannot be read: {error}") from error


def _answer(row: Record, how: How) -> list[Record]:
    names = (how.answer,) if how.answer else _ANSWERS
    said = next((value for name in names if (value := value_at(row, name)) is not None), None)
    if said is None:
        raise RowFault(
            f"have no answer: no message of the assistant at the end, and none of the columns {', '.join(names)}"
        )
    return _messages(said) if isinstance(said, list) else [{"role": "assistant", "content": str(said)}]


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


def read_dataset(path: str, how: How) -> Dataset:
    """Return the rows of a file or folder, of which `opd.inputs` has looked at each.

    Raises:
        Unreadable, RowFault: see `raw_rows` and `read_row`.
    """
    from datasets import Dataset, load_dataset

    tables: list[Dataset] = []
    for file in files_of(Path(path)):
        if file.suffix == ".parquet" and _is_prepared(pq.read_schema(file), how):
            tables.append(load_dataset("parquet", data_files=str(file))["train"])
            continue
        rows = _read_rows(file, how)
        while batch := list(islice(rows, _BATCH_ROWS)):
            tables.append(Dataset(_table(batch)))
    return joined(tables)


def _read_rows(file: Path, how: How) -> Iterator[Record]:
    for number, row in enumerate(raw_rows(file)):
        try:
            yield read_row(row or {}, how, source=file.stem, number=number)
        except RowFault as error:
            raise Unreadable(f"row {number} of {file} (counted from 0): such rows {error}", "mend the row") from error


def _is_prepared(schema: pa.Schema, how: How) -> bool:
    """Return True for a Parquet file in the columns that are wanted, with contents of text."""
    needed = {how.wants} | ({"data_source", "reward_model"} if how.wants == PROMPT else set())
    if how.prompt or how.answer or not needed <= set(schema.names):
        return False
    kind = schema.field(how.wants).type
    message = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else pa.null()
    if not pa.types.is_struct(message) or message.get_field_index("role") < 0:
        return False
    content = message.get_field_index("content")
    return bool(
        content >= 0 and (pa.types.is_string(kind := message.field(content).type) or pa.types.is_large_string(kind))
    )


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


def joined(tables: Sequence[Dataset]) -> Dataset:
    """Return the rows of all tables; where their types differ, values of mixed types become text.

    One such field is `extra_info.index`: a row's number in most prepared files, a UUID in DAPO's. Another is a ground truth
    that is 7 here and "7" there; scorers read its text.
    """
    from datasets import Dataset, concatenate_datasets

    try:
        return tables[0] if len(tables) == 1 else concatenate_datasets(list(tables))
    except (ValueError, TypeError, pa.ArrowException):
        return Dataset(_table([row for table in tables for row in table]))
