"""Prompt files: there, readable to the last row, in verl's columns, without empty prompts, enough for a batch."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from opd.data.split import part_of
from opd.experiment.algorithm import MESSAGES, TOOLS
from opd.experiment.errors import Problem
from opd.experiment.sections import Split

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIXES = (".parquet", ".json", ".jsonl")  # what verl's data set reads
_PREPARE = (
    "prepare it with `python -m opd.data.prepare_grpo_data` or `process_eval_data` (DAPO's, AIME's and MATH's files) or "
    "the command of the agent's environment, or write it as src/opd/data/README.md says"
)
PROMPT = "prompt"
# What is in each column of a file with prompts.
_COLUMNS = {
    PROMPT: "[{role: user, content: ...}]",
    "data_source": "a text, by which metrics and scorers go",
    "reward_model": "{style: rule, ground_truth: ...}",
}
_NUM_SHOWN = 5
_BATCH_ROWS = 16_384
_MAX_SHOWN_CHARS = 60


_WHOLE = Split()


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """The files of one data set.

    Attributes:
        key: of the spec, `data.train` or `data.val`.
        files: in their order; a URL, or a bundled name such as `toy://train`, is not looked at.
        batch_size: prompts of a training step; None where any number of rows will do. Not compared with conversations.
        max_samples: rows that are used at most; None or -1: all.
        prompt_key: the column of the prompts.
        scorer: the built-in scorer that reads the ground truths, as text; empty: another function, or none.
        split: the part of the rows that is used.
        columns: (key of the spec, `COLUMN` or `COLUMN.FIELD`) of what else is read of each row.
        written: what people wrote for a file that was fetched, by its place here.
    """

    key: str
    files: Sequence[str]
    batch_size: int | None = None
    max_samples: int | None = None
    prompt_key: str = PROMPT
    scorer: str = ""
    split: Split = _WHOLE
    columns: tuple[tuple[str, str], ...] = ()
    written: Mapping[str, str] | None = None

    def name(self, path: str) -> str:
        """What the spec calls a file."""
        return (self.written or {}).get(path, path)


def data_problems(data: Sequence[DataSet]) -> Iterator[Problem]:
    """What is wrong with the data sets."""
    for one in data:
        yield from _set_problems(one)


def suffix_fault(path: PurePath) -> str:
    """Why no prompt file is called so; empty where one may be."""
    return "" if path.suffix in _SUFFIXES else f"a prompt file ends in one of {', '.join(_SUFFIXES)}"


class _File(NamedTuple):
    """What reading one file gave."""

    num_rows: int | None = None
    """None: not known."""
    schema: pa.Schema | None = None
    problems: tuple[tuple[str, str], ...] = ()
    """(rule, fix) of each."""


def _set_problems(data: DataSet) -> Iterator[Problem]:
    files = {}
    for path in data.files:
        files[path] = _File() if "://" in path else _look_at(Path(path), data.prompt_key, data.name(path))
        for rule, fix in files[path].problems:
            yield Problem(path=data.key, value=data.name(path), rule=rule, fix=fix)
    if any(file.problems for file in files.values()):
        return
    yield from _column_problems(data, files)
    yield from _truth_problems(data)
    counts = [file.num_rows for file in files.values()]
    # Conversations become rows of their turns, more or fewer; the trainer counts those.
    if data.batch_size is None or None in counts or data.prompt_key == MESSAGES:
        return
    total = sum(files[path].num_rows or 0 for path in data.files)
    split, in_part = data.split, total
    if split.part is not None:
        in_part = sum(_parts(path, data.prompt_key, split.of, split.seed)[split.part] for path in data.files)
    usable = in_part if not data.max_samples or data.max_samples < 0 else min(in_part, data.max_samples)
    if usable < data.batch_size:
        keys = [
            key for key, cuts in (("data.split", in_part < total), ("data.max_train_samples", usable < in_part)) if cuts
        ]
        limit = f" (of {total}, by {' and '.join(keys)})" if keys else ""
        yield Problem(
            path="data.train_batch_size",
            value=data.batch_size,
            rule=f"a step draws that many prompts and fills every batch, but {data.key} has {usable}{limit}",
            fix=f"at most {usable}, with ppo_mini_batch_size a divisor of it, or more prompts",
        )


def _parts(path: str, prompt_key: str, of: int, seed: int) -> Counter[int]:
    """How many rows of a Parquet file are in each part."""
    import pyarrow.parquet as pq

    prompts = pq.read_table(path, columns=[prompt_key])[prompt_key]
    return Counter(part_of(messages, of=of, seed=seed) for batch in prompts.chunks for messages in batch.to_pylist())


def _column_problems(data: DataSet, files: dict[str, _File]) -> Iterator[Problem]:
    """Columns that a template reads must be there, and hold texts or numbers."""
    for key, name in data.columns:
        for path, file in files.items():
            if file.schema is not None and (rule := _unreadable(file.schema, name)):
                yield Problem(
                    path=key,
                    value=name,
                    rule=f"{rule} in {data.name(path)}, a file of {data.key} (it has {', '.join(file.schema.names)})",
                    fix="name a column, or COLUMN.FIELD, of texts or numbers, or add it to the file",
                )
                break


def _unreadable(schema: pa.Schema, name: str) -> str:
    """Why `name` cannot be read as a text; empty where it can."""
    import pyarrow as pa

    if name in schema.names:
        type_ = schema.field(name).type
    else:
        type_ = pa.struct(list(schema))
        for part in name.split("."):
            if not pa.types.is_struct(type_) or part not in _names(type_):
                return f"there is no column {name!r}"
            type_ = type_.field(part).type
    return f"the column {name!r} is {type_}" if pa.types.is_nested(type_) else ""


def _truth_problems(data: DataSet) -> Iterator[Problem]:
    """Ground truths whose text is no answer: a model says 5 and not 5.0, ['5'] or None."""
    for path in data.files:
        if not data.scorer or "://" in path:
            continue
        truths = _truths(Path(path))
        row = _first_that_is_no_text(truths, may_be_float=data.scorer == "math_verify")  # which compares numbers
        if row is None:
            continue
        value = f"{truths[row].as_py()!r}"[:_MAX_SHOWN_CHARS]
        yield Problem(
            path=data.key,
            value=data.name(path),
            rule=f"its column 'reward_model.ground_truth' ({truths.type}) has {value} in row {row} (counted from 0), and "
            f"reward.function={data.scorer} reads it as text: right answers would count as wrong",
            fix='write the answer as text ("5"), leave out rows that have none, or score them by reward.function: custom',
        )


def _truths(path: Path) -> pa.ChunkedArray:
    """The ground truths of a Parquet file, or that of the first row of a JSON file."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as parquet:
            table = parquet.read(columns=["reward_model.ground_truth"])
    else:
        table = pa.Table.from_pylist([_first_row(path)])
    return pc.struct_field(table["reward_model"], "ground_truth")


def _first_that_is_no_text(truths: pa.ChunkedArray, *, may_be_float: bool) -> int | None:
    import pyarrow as pa

    is_float = pa.types.is_floating(truths.type) or pa.types.is_decimal(truths.type)
    if len(truths) and (pa.types.is_nested(truths.type) or (is_float and not may_be_float)):
        return 0
    row = truths.is_null().index(True).as_py()
    return None if row < 0 else row


def _look_at(path: Path, prompt_key: str, name: str) -> _File:
    if path.is_dir():
        inside = (p.name for p in path.iterdir() if p.suffix in _SUFFIXES and not p.name.startswith("."))
        found = sorted(f"{name.rstrip('/')}/{file}" for file in inside)
        return _refused("this is a folder; name its files", f"[{', '.join(found[:_NUM_SHOWN])}]" if found else _PREPARE)
    if not path.exists():
        beside = path.parent if path.parent.is_dir() else None
        near = sorted(p.name for p in beside.iterdir() if p.suffix in _SUFFIXES)[:_NUM_SHOWN] if beside else []
        there = f"; {beside} has {', '.join(near)}" if near else ""
        return _refused(
            f"there is no such file{there}", f"name a file that is there (data.dir, {path.parent}), or {_PREPARE}"
        )
    if rule := suffix_fault(path):
        return _refused(rule, _PREPARE)
    if path.suffix != ".parquet" and not path.stat().st_size:
        return _refused("the file is empty", _PREPARE)
    if path.suffix != ".parquet":
        return _look_at_json(path, prompt_key)
    stat = path.stat()
    return _look_at_parquet(path, prompt_key, (stat.st_mtime_ns, stat.st_size))


def _look_at_json(path: Path, prompt_key: str) -> _File:
    """The first row: the columns of a prepared file are in every row."""
    import pyarrow as pa

    try:
        schema = pa.Table.from_pylist([_first_row(path)]).schema
    except (ValueError, LookupError, AttributeError, pa.ArrowException) as error:
        fix = "one JSON object a line" + (", or a list of them" if path.suffix == ".json" else "")
        return _refused(f"its first {'row' if path.suffix == '.json' else 'line'} is no object in JSON: {error}", fix)
    return _File(problems=tuple(_schema_problems(schema, prompt_key)))


def _first_row(path: Path) -> Any:
    """Of JSON lines; of a `.json` file, for which the reader takes these too, also of a list or a single object."""
    with path.open(encoding="utf-8-sig") as file:
        line = file.readline()
        try:
            row = json.loads(line)
        except ValueError:
            if path.suffix == ".jsonl":
                raise
            row = json.loads(line + file.read())
    return row[0] if path.suffix == ".json" and isinstance(row, list) else row


def _refused(rule: str, fix: str) -> _File:
    return _File(problems=((rule, fix),))


@functools.cache  # a file is read once, by whatever door it comes to the run
def _look_at_parquet(path: Path, prompt_key: str, version: tuple[int, int]) -> _File:
    """Every page is read once, a few rows at a time, and nothing becomes a Python object.

    Args:
        version: time of the last change and size of the file, so that another one is not taken for it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            schema, num_rows = file.schema_arrow, file.metadata.num_rows
            problems = list(_schema_problems(schema, prompt_key))
            if not num_rows:
                problems.append(("the file has no rows", _PREPARE))
            bad: list[int] = []
            start = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                if not problems:
                    bad += [start + row for row in _empty_prompts(batch.column(prompt_key))]
                start += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        what = " ".join(str(error).split())
        return _refused(
            f"the file cannot be read as Parquet: {what}", "copy or write it again; it is cut off or damaged"
        )
    if bad:
        shown = ", ".join(map(str, bad[:_NUM_SHOWN])) + (", ..." if len(bad) > _NUM_SHOWN else "")
        rule = (
            f"{len(bad)} of {num_rows} prompts are empty (rows {shown}, counted from 0): a prompt is a list of messages, each "
            "with a role, and what a user or system says is not null or blank"
        )
        problems.append((rule, "take these rows out of the file, or fill them"))
    return _File(num_rows, schema, tuple(problems))


def _schema_problems(schema: pa.Schema, prompt_key: str) -> Iterator[tuple[str, str]]:
    import pyarrow as pa

    needed = (MESSAGES,) if prompt_key == MESSAGES else (prompt_key, "data_source", "reward_model")
    missing = [name for name in needed if name not in schema.names]
    if missing:
        fix = "[{role: user, content: ...}, {role: assistant, content: ...}] in every row"
        if prompt_key != MESSAGES:
            wanted = "; ".join(f"{name}: {_COLUMNS.get(name, _COLUMNS[PROMPT])}" for name in missing)
            fix = f"add to every row {wanted} (src/opd/data/README.md)"
        yield f"it lacks the columns {', '.join(missing)} (it has {', '.join(schema.names) or 'none'})", fix
    if prompt_key in schema.names:
        prompt = schema.field(prompt_key).type
        if not (
            _is_list(prompt)
            and pa.types.is_struct(prompt.value_type)
            and {"role", "content"} <= _names(prompt.value_type)
        ):
            fix = f"{_COLUMNS[PROMPT]} in every row; {_PREPARE}"
            yield (
                f"its column {prompt_key!r} is {prompt}, and a prompt is a list of messages with role and content",
                fix,
            )
    if "reward_model" in needed and "reward_model" in schema.names:
        reward = schema.field("reward_model").type
        if not (pa.types.is_struct(reward) and "ground_truth" in _names(reward)):
            rule = f"its column 'reward_model' is {reward}, and the scorer reads its ground_truth"
            yield rule, f"{_COLUMNS['reward_model']} in every row; {_PREPARE}"
    if prompt_key == MESSAGES and TOOLS in schema.names and not _may_be_text(schema.field(TOOLS).type):
        rule = f"its column {TOOLS!r} is {schema.field(TOOLS).type}, and a conversation's tools are their list as JSON text"
        yield rule, "json.dumps([...]) in every row with tools, null in the others"


def _may_be_text(type_: pa.DataType) -> bool:
    import pyarrow as pa

    value = type_.value_type if pa.types.is_dictionary(type_) else type_
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(test(value) for test in texts)


def _is_list(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return any(test(type_) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _names(struct: Any) -> set[str]:
    return {struct.field(i).name for i in range(struct.num_fields)}


def _empty_prompts(prompts: pa.Array) -> list[int]:
    """Rows whose prompt is null, has no message, a message without role, or a question that says nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(prompts), 0)
    empty = set(pc.indices_nonzero(pc.equal(lengths, 0)).to_pylist())
    messages, rows = pc.list_flatten(prompts), pc.list_parent_indices(prompts)
    role, content = pc.struct_field(messages, "role"), pc.struct_field(messages, "content")
    silent = pc.is_null(content)
    if pa.types.is_string(content.type) or pa.types.is_large_string(content.type):
        silent = pc.or_(silent, pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(pc.fill_null(content, ""))), 0))
    # An assistant's turn may consist of tool calls, and a tool may return nothing.
    speaks = pc.is_in(pc.fill_null(role, ""), value_set=pa.array(["user", "system"], pa.string()))
    wrong = pc.or_(pc.is_null(role), pc.and_(silent, speaks))
    return sorted(empty | set(pc.filter(rows, wrong).to_pylist()))
