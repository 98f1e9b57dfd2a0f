"""Faults of data files, each named with its file, rule and fix before anything is started."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.inputs.files import prompt_rows, write_rows

from opd.data.messages import part_of
from opd.data.reading import How
from opd.experiment.algorithm import MESSAGES
from opd.experiment.parse import parse_tree
from opd.experiment.sections import Split
from opd.inputs import Inputs
from opd.inputs.data import DataSet, data_problems, shapes_of

FORMATS = ("parquet", "jsonl", "json")


def faults(files, **options) -> list:
    return list(data_problems([DataSet(key="data.train", files=files, **options)]))


def only(files, **options):
    [problem] = faults(files, **options)
    assert problem.value is not None
    assert problem.rule
    assert problem.fix
    return problem


def write(path, rows) -> str:
    if path.suffix == ".parquet":
        return write_rows(path, rows, None)
    path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def with_truths(path, *truths) -> str:
    pairs = zip(prompt_rows(len(truths)), truths, strict=True)
    return write(path, [{**row, "reward_model": {"style": "rule", "ground_truth": truth}} for row, truth in pairs])


@pytest.mark.parametrize("suffix", FORMATS)
def test_fewer_prompts_than_a_batch_are_refused_with_both_numbers(tmp_path, suffix):
    problem = only([write(tmp_path / f"a.{suffix}", prompt_rows(3))], batch_size=16)
    assert (problem.path, problem.value) == ("data.train_batch_size", 16)
    assert "data.train has 3" in problem.rule
    assert problem.fix.startswith("at most 3")


def test_only_the_rows_of_the_part_that_is_used_count(tmp_path):
    path = write_rows(tmp_path / "a.parquet", prompt_rows(32))
    in_first = sum(part_of(row["prompt"], of=2, seed=3) == 1 for row in prompt_rows(32))
    assert 2 < in_first < 32
    split = Split(part=1, of=2, seed=3)
    assert faults([path], batch_size=in_first, split=split) == []
    assert f"has {in_first} (of 32, by data.split)" in only([path], batch_size=in_first + 1, split=split).rule
    both = only([path], batch_size=16, split=split, max_samples=2).rule
    assert "has 2 (of 32, by data.split and data.max_train_samples)" in both


def test_a_missing_file_is_named_with_those_next_to_it(tmp_path):
    for name in ("a", "b", "c", "d", "e", "train"):
        write_rows(tmp_path / f"{name}.parquet", prompt_rows(1))
    problem = only([str(tmp_path / "trian.parquet")])
    assert "no such file" in problem.rule
    assert "has train.parquet, a.parquet, b.parquet, c.parquet, d.parquet" in problem.rule
    assert "hub" not in problem.fix
    assert "{path: OWNER/NAME, split: train}" in only(["openai/gsm8k"]).fix


@pytest.mark.parametrize("path", ["file:///data/train.jsonl", "https://example.com/train.jsonl"])
def test_an_address_that_no_data_are_read_from_is_refused_with_the_forms_of_one(path):
    found = only([path], batch_size=1)
    assert found.rule == f"no data are read from {path.partition('://')[0]}://"
    forms = "the file's path, of the hub {path: OWNER/NAME, split: train}, or the URL of a copy in a store (s3://"
    assert forms in found.fix
    assert faults(["s3://bucket/train.jsonl", "hub://openai/gsm8k?split=train", "toy://train", "agent://train"]) == []


@pytest.mark.parametrize("cut", ["all", "footer", "page"])
def test_a_damaged_file_is_found_wherever_it_is_damaged(tmp_path, cut):
    path = tmp_path / "a.parquet"
    write_rows(path, prompt_rows(200))
    whole = path.read_bytes()
    cuts = {"all": b"<html>404</html>", "footer": whole[:-100], "page": whole[:4] + b"\xff" * 32 + whole[36:]}
    path.write_bytes(cuts[cut])
    assert "cannot be read as Parquet" in only([str(path)]).rule


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "2 of 9 rows are empty"),
        ([{"role": "user", "content": None}], "2 of 9 rows are empty"),
        ([{"role": "user", "content": " \n"}], "2 of 9 rows are empty"),
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}], "2 of 9 rows are empty"),
        ([{"role": "user", "content": "hi"}, {"role": "assistant", "content": " "}], "2 of 9 rows are empty"),
        ([{"role": "human", "content": "hi"}], "2 of 9 rows have a message of the role 'human'"),
        (
            [{"role": "user", "content": [{"type": "image"}]}],
            "cannot be read: a message has a part of the type 'image'",
        ),
        (None, "2 of 9 rows have none of the columns prompt, "),
    ],
    ids=["no message", "null content", "blank", "silent user", "silent assistant", "role", "image", "null"],
)
def test_prompts_that_say_nothing_are_named_by_their_rows(tmp_path, prompt, said, suffix):
    text = [{"type": "text", "text": "hi"}] if "image" in said else "hi"  # a Parquet column has one type
    rows = [{"data_source": "d", "reward_model": {"ground_truth": "1"}, "prompt": [{"role": "user", "content": text}]} for _ in range(9)]  # fmt: skip
    for i in (2, 7):
        rows[i]["prompt"] = prompt
    problem = only([write(tmp_path / f"a.{suffix}", rows)])
    assert ("drop what is no text" in problem.fix) == ("image" in said)
    assert ("name the columns" in problem.fix) == (prompt is None)
    assert said in problem.rule
    unit = "line" if suffix == "jsonl" else "row"
    assert f"({unit} 3, {unit} 8, counted from 1)" in problem.rule


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("truths", "said"),
    [((5.0, 6.0), "the ground truth 5.0"), ((["5", "6"], ["6"]), "a list as ground truth"), (("5", None), "no ground truth"),
     (("5", " "), "no ground truth"), ((float("inf"), 1e999), "the ground truth inf")],
)  # fmt: skip
def test_a_ground_truth_that_is_no_text_is_refused_where_texts_are_compared(tmp_path, truths, said, suffix):
    path = with_truths(tmp_path / f"a.{suffix}", *truths)
    rules = [problem.rule for problem in faults([path], scorer="math_dapo")]
    assert any(said in rule for rule in rules)
    assert all("reward.function=math_dapo reads it as text" in rule for rule in rules)
    assert faults([path]) == [], "a function of one's own may read anything"


def test_a_ground_truth_is_scored_as_its_own_answer(tmp_path):
    path = with_truths(tmp_path / "a.jsonl", "$10-4 n$", r"\boxed{7}", "x" * 3000, "1")
    assert faults([path], scorer="exact_match") == []
    rule = only([path], scorer="math_reward").rule
    assert "1 of 4 rows have a ground truth that reward.function=math_reward does not find right" in rule
    assert "(line 3 'xxx" in rule


@pytest.mark.parametrize(
    ("opd", "learns"),
    [
        ({}, False),
        ({"reward_beta": 0.5}, True),
        ({"policy": {"weight": 0.5}}, True),
        ({"stages": [{"policy_weight": 0.5}]}, True),
    ],
)
def test_truths_are_needed_where_something_is_learnt_or_reported_from_them(opd, learns):
    tree = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}, "rollout": {"num_samples": 2}, "opd": opd}
    tree |= {"reward": {"function": "math_dapo"}}
    scorers = {one.key: one.scorer for one in Inputs.of(parse_tree(tree).spec).data}
    assert scorers == {"data.val": "math_dapo", "data.train": "math_dapo" if learns else ""}
    never = Inputs.of(parse_tree(tree | {"trainer": {"test_freq": -1}}).spec).data
    assert {one.key: one.scorer for one in never}["data.val"] == ""


def test_a_fault_of_a_file_for_training_and_validation_is_reported_once(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"text": "q"}])
    [problem] = data_problems([DataSet(key=key, files=[path]) for key in ("data.train", "data.val")])
    assert problem.path == "data.train"


def test_every_fault_is_reported_at_once(tmp_path):
    whole = write_rows(tmp_path / "a.parquet", prompt_rows(2))
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    assert len(faults([whole, str(tmp_path / "b.parquet"), str(tmp_path / "c.parquet")])) == 2


def test_columns_that_a_template_reads_are_looked_for_in_every_row(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"prompt": "q", "hint": "h"}, {"prompt": "q"}])
    assert faults([path], columns=(("teacher.prompt", "prompt"),))[0].path == "teacher.prompt"
    problem = only([path], columns=(("teacher.prompt", "hint"),))
    assert problem.path == "teacher.prompt"
    assert "1 of 2 rows have no text or number in the column 'hint'" in problem.rule
    route = only([path], columns=(("route.by", "hint"),))
    assert (route.path, "(line 2, counted from 1)" in route.rule, "FIELD" in route.fix) == ("route.by", True, False)
    assert "FIELD" in problem.fix


def test_a_file_of_ones_own_is_told_the_columns_that_it_has_and_the_keys_that_name_them(tmp_path):
    pq.write_table(pa.table({"text": ["1+1"], "label": ["2"]}), tmp_path / "own.parquet")
    problem = only([str(tmp_path / "own.parquet")])
    assert "they have text, label" in problem.rule
    assert "data.columns: {prompt: COLUMN, answer: COLUMN}" in problem.fix
    assert faults([str(tmp_path / "own.parquet")], how=How(prompt="text", answer="label"), scorer="math_dapo") == []


def test_rows_beyond_the_bound_are_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("opd.inputs.data.MAX_ROWS", 2)
    path = write(tmp_path / "a.jsonl", [*prompt_rows(2), {"prompt": ""}])
    assert faults([path], batch_size=3) == []
    assert "the first 2 of 3 rows" in capsys.readouterr().out


def test_the_shapes_of_messages_are_what_a_template_is_asked_for(tmp_path):
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>a</think>b", "tool_calls": None}]
    path = write(tmp_path / "a.parquet", [{"messages": talk}])
    found = shapes_of(DataSet(key="data.train", files=[path], how=How(MESSAGES)))
    assert found >= {("user", "content"), ("assistant", "content with a thought")}
    assert ("assistant", "tool_calls") not in found


def test_a_conversation_may_have_other_columns_of_any_type(tmp_path):
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    path = write(tmp_path / "a.jsonl", [{"messages": talk, "reward_model": "gpt"}])
    assert faults([path], how=How(MESSAGES)) == []
