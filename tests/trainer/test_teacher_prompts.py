"""Prompts of a teacher of its own: the template over the columns, too long prompts, rows that lack a value."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from tests.minimal import MINIMAL
from transformers import AutoTokenizer

from opd.agent.conversation import Conversation
from opd.data.toy import STUDENT_DIR
from opd.experiment import SpecError, parse_tree
from opd.trainer.dataset import PromptDataset
from opd.trainer.teacher_prompts import TeacherPrompts, Unfilled, own_messages

ANSWERS = ["020", "7", "{x}", "123456"]
ROW = {"prompt": [{"role": "user", "content": "1+1="}], "reward_model": {"ground_truth": "2"}, "hints": 3, "a.b": "dot"}


def test_the_last_message_of_the_user_is_written_anew_and_the_others_stay():
    turns = [("system", "be short"), ("user", "1+1="), ("assistant", "2"), ("user", "2+2="), ("assistant", "well,")]
    messages = [{"role": role, "content": content} for role, content in turns]
    found = own_messages(
        "{prompt} is {reward_model.ground_truth} {{so}} {hints}{a.b}", ROW | {"prompt": messages}, prompt_key="prompt"
    )
    assert [message["content"] for message in found] == ["be short", "1+1=", "2", "2+2= is 2 {so} 3dot", "well,"]
    assert messages[3]["content"] == "2+2=", "the row is left as it is"


@pytest.mark.parametrize(
    ("template", "row", "lacks"),
    [
        ("{topic}", ROW, "text or number in topic"),
        ("{reward_model}", ROW, "text or number in reward_model"),
        ("{reward_model.style}", ROW, "text or number in reward_model.style"),
        ("{hints}", ROW | {"hints": None}, "text or number in hints"),
        ("{prompt}", ROW | {"prompt": [{"role": "system", "content": "x"}]}, "message of the user in text"),
        (
            "{prompt}",
            ROW | {"prompt": [{"role": "user", "content": [{"type": "image"}]}]},
            "message of the user in text",
        ),
    ],
)
def test_a_row_that_lacks_what_the_template_reads_says_what(template, row, lacks):
    with pytest.raises(Unfilled, match=lacks):
        own_messages(template, row, prompt_key="prompt")


def _dataset(folder, answers=ANSWERS, **config) -> PromptDataset:
    rows = [
        {
            "data_source": ("maths", "chat")[number % 2],
            "prompt": [{"role": "user", "content": "10+10="}],
            "reward_model": {"ground_truth": answer},
        }
        for number, answer in enumerate(answers)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    data = {"max_prompt_length": 16, "prompt_key": "prompt", "filter_overlong_prompts": True} | config
    return PromptDataset(
        [str(folder / "train.parquet")], AutoTokenizer.from_pretrained(STUDENT_DIR), OmegaConf.create(data)
    )


def _spec(max_length=64, prompt="{prompt}({reward_model.ground_truth})"):
    teacher = {"path": "t", "prompt": prompt, "max_prompt_length": max_length}
    return parse_tree(MINIMAL["opd"] | {"teacher": teacher}).spec


def test_the_students_template_and_tokenizer_write_the_teachers_prompts(tmp_path):
    dataset = _dataset(tmp_path)
    first, braces = TeacherPrompts(dataset, _spec()).of_rows([0, 2])
    asked = dataset.tokenizer.apply_chat_template(
        [{"role": "user", "content": "10+10=(020)"}], add_generation_prompt=True, return_dict=False
    )
    assert first.tolist() == asked
    assert "(\x7b\x78\x7d)" in dataset.tokenizer.decode(braces)


def test_of_several_teachers_each_has_its_own_prompts_or_the_students(tmp_path):
    tree = {key: value for key, value in MINIMAL["opd"].items() if key != "teacher"}
    teachers = {"a": {"path": "t", "prompt": "{prompt}!"}, "b": {"path": "u"}}
    spec = parse_tree(tree | {"teachers": teachers, "route": {"to": {"maths": "a", "chat": "b"}}}).spec
    dataset = _dataset(tmp_path)
    found = TeacherPrompts(dataset, spec).of_rows([0, 1, 2])
    assert "10+10=!" in dataset.tokenizer.decode(found[0])
    assert [ids is None for ids in found] == [False, True, False]


def test_rows_whose_prompt_is_too_long_for_the_teacher_are_dropped_and_counted(tmp_path):
    dataset = _dataset(tmp_path)
    lengths = [len(ids) for ids in TeacherPrompts(dataset, _spec()).of_rows(range(4))]
    dataset = _dataset(tmp_path)
    prompts = TeacherPrompts(dataset, _spec(max_length=max(lengths) - 1))
    assert dataset.left_out == {"are too long as the teacher reads them": 1}
    assert (dataset.places, dataset.num_overlong_dropped) == ([0, 1, 2], 0)
    dataset.keep([2], "are gone")
    assert "{x}" in dataset.tokenizer.decode(prompts.of_rows([0])[0]), (
        "rows are counted as the data set counts them now"
    )


@pytest.mark.parametrize(
    ("drops", "limit", "words"),
    [(False, 19, "1 of 4 training prompts are longer as the teacher reads them"), (True, 3, "none is left")],
)
def test_too_long_prompts_that_are_not_dropped_or_leave_nothing_are_an_error(tmp_path, drops, limit, words):
    dataset = _dataset(tmp_path, filter_overlong_prompts=drops)
    lengths = sorted(len(ids) for ids in TeacherPrompts(dataset, _spec()).of_rows(range(4)))
    limit = lengths[-2] if limit == 19 else limit
    with pytest.raises(SpecError, match=words) as caught:
        TeacherPrompts(_dataset(tmp_path, filter_overlong_prompts=drops), _spec(max_length=limit))
    (problem,) = caught.value.problems
    assert (problem.path, problem.value) == ("teacher.max_prompt_length", limit)
    assert f"the longest has {lengths[-1]} tokens" in problem.rule


def test_rows_without_a_value_are_named_with_their_number(tmp_path):
    dataset = _dataset(tmp_path, answers=["1", None, "2", None])
    with pytest.raises(SpecError) as caught:
        TeacherPrompts(dataset, _spec())
    (problem,) = caught.value.problems
    assert problem.path == "teacher.prompt"
    assert "2 of 4 training prompts have no text or number in reward_model.ground_truth (rows 2, 4" in problem.rule


def test_with_tools_a_prompt_is_written_as_the_agent_loop_writes_it(tmp_path):
    dataset = _dataset(tmp_path)
    look_up = {"name": "look_up", "description": "A price.", "parameters": {"type": "object", "properties": {}}}
    dataset.tool_schemas = [{"type": "function", "function": look_up}]
    [found] = TeacherPrompts(dataset, _spec(max_length=512)).of_rows([0])
    conversation = Conversation(dataset.tokenizer, tools=dataset.tool_schemas, max_parallel_calls=1)
    assert found.tolist() == conversation.prompt([{"role": "user", "content": "10+10=(020)"}])
