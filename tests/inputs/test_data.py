"""Faults of prompt files, each named with its file, rule and fix before anything is started."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.inputs.files import prompt_rows, write_rows

from opd.data.split import part_of
from opd.experiment.parse import parse_tree
from opd.experiment.sections import Split
from opd.inputs import Inputs
from opd.inputs.data import DataSet, data_problems


def faults(files, **options) -> list:
    return list(data_problems([DataSet(key="data.train", files=files, **options)]))


def only(files, **options):
    [problem] = faults(files, **options)
    assert problem.path in ("data.train", "data.train_batch_size")
    assert problem.value is not None
    assert problem.rule
    assert problem.fix
    return problem


def with_prompt(prompt, num=3, schema_type=None):
    rows = [{"data_source": "d", "reward_model": {"ground_truth": "1"}, "prompt": prompt} for _ in range(num)]
    fields = [("data_source", pa.string()), ("reward_model", pa.struct([("ground_truth", pa.string())]))]
    return rows, pa.schema([*fields, ("prompt", schema_type)]) if schema_type else None


def test_fewer_prompts_than_a_batch_are_refused_with_both_numbers(tmp_path):
    problem = only([write_rows(tmp_path / "a.parquet", prompt_rows(3))], batch_size=16)
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


def test_a_missing_file_is_named_with_what_lies_beside_it(tmp_path):
    write_rows(tmp_path / "train.parquet", prompt_rows(1))
    problem = only([str(tmp_path / "trian.parquet")])
    assert "no such file" in problem.rule
    assert "has train.parquet" in problem.rule


@pytest.mark.parametrize("cut", ["all", "footer", "page"])
def test_a_damaged_file_is_found_wherever_it_is_damaged(tmp_path, cut):
    path = tmp_path / "a.parquet"
    write_rows(path, prompt_rows(200))
    whole = path.read_bytes()
    path.write_bytes(
        {"all": b"<html>404</html>", "footer": whole[:-100], "page": whole[:4] + b"\xff" * 32 + whole[36:]}[cut]
    )
    assert "cannot be read as Parquet" in only([str(path)]).rule


MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


@pytest.mark.parametrize(
    "prompt",
    [None, [], [{"role": "user", "content": None}], [{"role": "user", "content": " \n"}], [{"role": None, "content": "hi"}],
     [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}]],
    ids=["null", "no message", "null content", "blank", "no role", "silent user"],
)  # fmt: skip
def test_empty_prompts_are_named_by_their_rows(tmp_path, prompt):
    rows, schema = with_prompt([{"role": "user", "content": "hi"}], 9, MESSAGES)
    for i in (2, 7):
        rows[i]["prompt"] = prompt
    problem = only([write_rows(tmp_path / "a.parquet", rows, schema)])
    assert "2 of 9 prompts are empty (rows 2, 7, counted from 0)" in problem.rule


@pytest.mark.parametrize(
    ("prompt", "type_", "said"),
    [("What is 1 + 1?", pa.string(), "is string"), ([1, 2], pa.list_(pa.int64()), "is list<element: int64>"),
     ([{"text": "hi"}], pa.list_(pa.struct([("text", pa.string())])), "text: string")],
    ids=["text", "numbers", "other keys"],
)  # fmt: skip
def test_a_prompt_column_of_another_type_is_refused_with_its_type(tmp_path, prompt, type_, said):
    rows, schema = with_prompt(prompt, 3, type_)
    problem = only([write_rows(tmp_path / "a.parquet", rows, schema)])
    assert said in problem.rule.replace("item:", "element:")
    assert "role and content" in problem.rule


def test_a_reward_without_ground_truth_is_refused(tmp_path):
    rows = [{"data_source": "d", "prompt": [{"role": "user", "content": "hi"}], "reward_model": "2"}]
    assert "'reward_model' is string" in only([write_rows(tmp_path / "a.parquet", rows, None)]).rule


def with_truths(path, *truths) -> str:
    rows = [
        {**row, "reward_model": {"style": "rule", "ground_truth": truth}}
        for row, truth in zip(prompt_rows(len(truths)), truths, strict=True)
    ]
    if path.suffix != ".parquet":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)
    return write_rows(path, rows, None)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "json"])
@pytest.mark.parametrize(
    ("truths", "said"),
    [((5.0, 6.0), "has 5.0 in row 0"), ((["5"], ["6"]), "has ['5'] in row 0"), ((None, "5"), "has None in row 0")],
)
def test_a_ground_truth_that_is_no_text_is_refused_where_texts_are_compared(tmp_path, truths, said, suffix):
    path = with_truths(tmp_path / f"a.{suffix}", *truths)
    problem = only([path], scorer="math_dapo")
    assert problem.value == path
    assert "'reward_model.ground_truth'" in problem.rule
    assert said in problem.rule
    assert "reward.function=math_dapo" in problem.rule
    assert faults([path]) == [], "a function of one's own may read anything"


@pytest.mark.parametrize(
    ("opd", "learns"),
    [
        ({}, False),
        ({"reward_beta": 0.5}, True),
        ({"policy": {"weight": 0.5}}, True),
        ({"stages": [{"policy_weight": 0.5}]}, True),
        (
            {
                "stages": [{"until": 0.5}, {}],
                "importance": {
                    "problems": {
                        "weights": "competence",
                        "pass_rates": "p",
                        "drop": False,
                        "recompute": {"at_stages": True},
                    }
                },
            },
            True,
        ),
    ],
)
def test_prompts_of_a_distillation_need_answers_only_where_it_learns_from_their_rewards(opd, learns):
    tree = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}, "rollout": {"num_samples": 2}, "opd": opd}
    spec = parse_tree(tree | {"reward": {"function": "math_dapo"}}).spec
    scorers = {one.key: one.scorer for one in Inputs.of(spec).data}
    assert scorers == {"data.val": "math_dapo", "data.train": "math_dapo" if learns else ""}


@pytest.mark.parametrize(
    "text",
    [
        lambda rows: json.dumps(rows),
        lambda rows: json.dumps(rows, indent=1),
        lambda rows: "\n".join(map(json.dumps, rows)),
        lambda rows: json.dumps(rows[0], indent=1),
    ],
    ids=["list", "indented list", "lines", "one object"],
)
def test_a_json_file_is_looked_at_however_its_reader_takes_it(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text([{"problem": "1+1?", "answer": "2"}] * 2))
    assert "lacks the columns prompt, data_source, reward_model (it has problem, answer)" in only([str(path)]).rule
    path.write_text(text(prompt_rows(2)))
    assert faults([str(path)]) == []


def test_every_fault_is_reported_at_once(tmp_path):
    whole = write_rows(tmp_path / "a.parquet", prompt_rows(2))
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    assert len(faults([whole, str(tmp_path / "b.parquet"), str(tmp_path / "c.parquet")])) == 2


def test_a_file_of_ones_own_is_told_the_columns_that_it_lacks_and_where_they_are_explained(tmp_path):
    pq.write_table(pa.table({"question": ["1+1"], "data_source": ["d"]}), tmp_path / "own.parquet")
    fix = only([str(tmp_path / "own.parquet")]).fix
    assert "prompt: [{role: user, content: ...}]; reward_model: {style: rule, ground_truth: ...}" in fix
    assert "src/opd/data/README.md" in fix
    assert "prepare_grpo_data" not in fix, "it reads DAPO's and the benchmarks' files alone"
