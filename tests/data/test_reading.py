"""One reader: rows of ordinary files become prompts with truths, or conversations, in any format and with any columns."""

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opd.data.files import Unreadable, files_of, raw_rows
from opd.data.reading import How, RowFault, read_dataset, read_row
from opd.experiment.algorithm import MESSAGES

QUESTION = [{"role": "user", "content": "1 + 1?"}]
TALK = [*QUESTION, {"role": "assistant", "content": "2"}]
SHAREGPT = [{"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "2"}]
TOOL_TALK = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": None, "tool_calls": [
    {"type": "function", "function": {"name": "f", "arguments": '{"city": "a"}'}}]}]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "how", "prompt", "truth"),
    [
        ({"prompt": QUESTION, "data_source": "d", "reward_model": {"ground_truth": "2"}}, {}, QUESTION, "2"),
        ({"prompt": "1 + 1?"}, {}, QUESTION, None),
        ({"prompt": QUESTION, "answer": 2}, {}, QUESTION, "2"),
        ({"question": "1 + 1?", "answer": "It is\n#### 1,002"}, {}, QUESTION, "1002"),
        ({"problem": "1 + 1?", "solution": r"so \boxed{2}"}, {}, QUESTION, "2"),
        ({"question": "1 + 1?", "final_answer": ["$2$"]}, {}, QUESTION, "$2$"),
        ({"messages": TALK, "answer": "2"}, {}, QUESTION, "2"),
        ({"conversations": SHAREGPT}, {}, QUESTION, None),
        ({"prompt": "1 + 1?", "completion": "2"}, {"answer": "completion"}, QUESTION, "2"),
        ({"instruction": "Add", "input": "1 + 1", "output": "2"}, {}, [{"role": "user", "content": "Add\n\n1 + 1"}], None),
        ({"q": {"text": "1 + 1?"}, "a": "2"}, {"prompt": "q.text", "answer": "a"}, QUESTION, "2"),
        ({"system": "Be brief.", "question": "1 + 1?"}, {}, [{"role": "system", "content": "Be brief."}, *QUESTION], None),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]}]}, {}, QUESTION, None),
        ({"prompt": [{"role": "user", "content": "1 + 1?", "tool_calls": None, "name": None}]}, {}, QUESTION, None),
        ({"prompt": json.dumps(QUESTION)}, {}, QUESTION, None),
        ({"messages": f" {json.dumps(QUESTION, indent=1)}"}, {}, QUESTION, None),
        ({"prompt": "[{1}, {2}] has how many?"}, {}, [{"role": "user", "content": "[{1}, {2}] has how many?"}], None),
    ],
)  # fmt: skip
def test_a_row_is_read_as_a_prompt_with_its_truth(row, how, prompt, truth):
    found = read_row(row, How(**how), source="stem", number=7)
    assert found["prompt"] == prompt
    assert found["reward_model"]["ground_truth"] == truth
    assert found["data_source"] == row.get("data_source", "stem")
    assert found["extra_info"] == {"index": 7}


@pytest.mark.parametrize(
    ("row", "how"),
    [({"messages": TALK}, {}), ({"prompt": "1 + 1?", "completion": "2"}, {}), ({"conversations": SHAREGPT}, {}),
     ({"prompt": QUESTION, "completion": TALK[1:]}, {}), ({"question": "1 + 1?", "answer": "2"}, {}),
     ({"q": "1 + 1?", "a": "2"}, {"prompt": "q", "answer": "a"}), ({"prompt": "other", "messages": TALK}, {}),
     ({"messages": TALK, "tools": "[]"}, {}), ({"messages": TALK, "tools": "null"}, {})],
)  # fmt: skip
def test_a_row_is_read_as_a_conversation(row, how):
    found = read_row(row, How(MESSAGES, **how), source="s", number=0)
    assert (found[MESSAGES], found.get("tools")) == (TALK, None)


@pytest.mark.parametrize(
    ("row", "wants", "said"),
    [
        ({"text": "1 + 1?"}, "prompt", "none of the columns prompt, messages"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "prompt",
            "a part of the type 'image_url'",
        ),
        ({"prompt": [1, 2]}, "prompt", "a list of int"),
        ({"prompt": [{"text": "hi"}]}, "prompt", "a message without role and content"),
        ({"prompt": [{"role": None, "content": "hi"}]}, "prompt", "a message without role and content"),
        ({"prompt": [{"role": ["user"], "content": "hi"}]}, "prompt", "a message without role and content"),
        ({"prompt": "q", "reward_model": "2"}, "prompt", "a reward_model without ground_truth"),
        ({"prompt": "q"}, MESSAGES, "have no answer"),
        ({"messages": [*QUESTION, {"role": "model", "content": "2"}]}, MESSAGES, "of the role 'model', not assistant"),
        ({"messages": str(QUESTION)}, "prompt", "a list of messages as text that is no JSON"),
        ({"messages": TALK, "tools": "price"}, MESSAGES, "'tools' that are no list of objects"),
        ({"messages": TALK, "tools": '{"name": "price"}'}, MESSAGES, "'tools' that are no list of objects"),
        ({"messages": TALK, "tools": [1]}, MESSAGES, "'tools' that are no list of objects"),
        ({"messages": [TALK[1], *TALK]}, MESSAGES, "begin with the assistant"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(row, wants, said):
    with pytest.raises(RowFault, match=said):
        read_row(row, How(wants), source="s", number=0)


ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "a, \n b \u2028?", "answer": "3"}]


def _write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, rows[0], delimiter=";" if "semicolon" in path.stem else ",")
            writer.writeheader()
            writer.writerows(rows)
    else:
        texts = {"list": json.dumps(rows), "indented": json.dumps(rows, indent=1), "data": json.dumps({"data": rows})}
        lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        path.write_text(texts.get(path.stem, lines), encoding="utf-8-sig" if path.stem == "bom" else "utf-8")
    return path


@pytest.mark.parametrize(
    "name",
    [
        "a.parquet",
        "a.jsonl",
        "bom.jsonl",
        "a.json",
        "list.json",
        "indented.json",
        "data.json",
        "a.csv",
        "semicolon.csv",
    ],
)
def test_every_format_gives_the_same_rows(tmp_path, name):
    path = _write(tmp_path / name, ROWS)
    of_lines = {"jsonl": "line 1 line 2", "csv": "line 2 line 4"}.get(name.partition(".")[2], "row 1 row 2")
    places, rows = zip(*raw_rows(path), strict=True)
    assert (list(rows), " ".join(places)) == (ROWS, "line 1 line 2" if name == "a.json" else of_lines)
    assert list(raw_rows(path, limit=1)) == [(places[0], ROWS[0]), (places[1], None)]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"a": 1}\n\n{"a"', "line 3 is no object"),
        ("a.jsonl", b'{"a": 1}\n{"a": 1\r\n{}', r"line 2 .*: Expecting ',' delimiter \(character 8\)"),
        ("a.json", b'{"a": {"0": 1, "1": 2}, "b": {"0": 3, "1": 4}}', "an object of columns, as pandas"),
        ("a.jsonl", b"[1]\n", "line 1 .* is no object in JSON, but list"),
        ("a.jsonl", b'{"a": "\\ud83d"}', "line 1 .* surrogates not allowed"),
        ("a.jsonl", b"\n", "no rows"),
        ("a.json", b'[{"a": 1}, {', "no JSON"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "line 3 has another number of fields"),
        ("a.csv", b'a,b\n1,"2\n', "cannot be read as CSV"),
        ("a.csv", "a\n\xe9".encode("latin-1"), "not UTF-8"),
        ("a.jsonl", b"version https://git-lfs.github.com/spec/v1", "git-lfs pointer"),
        ("a.parquet", b"<html>404</html>", "cannot be read as Parquet"),
    ],
)
def test_a_damaged_file_is_named_by_its_line(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(Unreadable, match=said):
        list(raw_rows(tmp_path / name))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["train.jsonl", "test.jsonl"], "the splits test, train"),
        (["notes.txt"], "no file that ends in"),
        (["part/a.jsonl"], "no file"),
        (["a.jsonl", "b.jsonl.gz", "c.JSONL", "README.md"], r"data that are not read: b\.jsonl\.gz, c\.JSONL"),
    ],
)
def test_a_folder_of_several_splits_or_of_none_is_refused(tmp_path, names, said):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(Unreadable, match=said):
        files_of(tmp_path)


def test_a_folder_is_its_files_with_their_own_types(tmp_path):
    _write(tmp_path / "a.jsonl", [{"question": "q", "answer": 2, "id": 1}, {"question": "q", "answer": "3", "id": "x"}])
    _write(tmp_path / "b.csv", [{"question": "r", "answer": "007"}])
    for name in ("README.md", "a.jsonl.lock", "code.tar.gz"):
        (tmp_path / name).write_text("no data")
    found = read_dataset(str(tmp_path), How())
    assert [row["ground_truth"] for row in found["reward_model"]] == ["2", "3", "007"]
    assert found["data_source"] == ["a", "a", "b"]
    assert found["id"] == ["1", "x", None]


def test_arguments_of_different_tools_keep_their_own_keys(tmp_path):
    other = json.loads(json.dumps(TOOL_TALK).replace("city", "date"))
    path = _write(tmp_path / "a.jsonl", [{"messages": TOOL_TALK}, {"messages": other}])
    found = read_dataset(str(path), How(MESSAGES))
    calls = [row[1]["tool_calls"][0]["function"]["arguments"] for row in found[MESSAGES]]
    assert calls == ['{"city": "a"}', '{"date": "a"}']
