"""Each training prompt's teacher by a column of the data, and the refusal of prompts that have none."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from tests.minimal import MINIMAL
from transformers import AutoTokenizer

from opd.data.toy import STUDENT_DIR
from opd.experiment import SpecError, parse_tree
from opd.rollout.batches import TEACHER
from opd.trainer.dataset import PromptDataset
from opd.trainer.row_facts import TeacherRoute

SOURCES = ["maths", "code/short", "maths", "chat"]
LEVELS = [1, 2, 2, 1]


@pytest.fixture
def dataset(tmp_path) -> PromptDataset:
    rows = [
        {
            "data_source": source,
            "level": level,
            "prompt": [{"role": "user", "content": "10+10="}],
            "reward_model": {"ground_truth": "020"},
        }
        for source, level in zip(SOURCES, LEVELS, strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    config = OmegaConf.create({"max_prompt_length": 16, "prompt_key": "prompt"})
    return PromptDataset([str(tmp_path / "train.parquet")], AutoTokenizer.from_pretrained(STUDENT_DIR), config)


def _spec(url=(), **route):
    tree = {key: value for key, value in MINIMAL["opd"].items() if key != "teacher"}
    return parse_tree(tree | {"teachers": {"b": {"path": "t"}, "a": {"path": "u", "url": url}}, "route": route}).spec


@pytest.mark.parametrize(("url", "numbers"), [((), [1, 0, 1, 0]), ("http://a:8000/v1", [0, 1, 0, 1])])
def test_a_prompts_teacher_is_that_of_its_data_source_and_served_ones_follow_those_of_the_ranks(
    url, numbers, dataset, capsys
):
    route = TeacherRoute(dataset, _spec(url, to={"maths": "a", "code/short": "b", "chat": "b"}))
    assert route.of_rows([3, 0, 1, 0]).tolist() == numbers
    assert "route: training prompts by teacher: a 2, b 2" in capsys.readouterr().out
    prompts = [{"index": row} for row in (3, 0, 1, 0)]
    route.tell(prompts)
    assert [prompt[TEACHER] for prompt in prompts] == numbers


def test_rows_that_left_the_data_do_not_shift_the_others(dataset):
    dataset.keep([1, 2], "are gone")
    route = TeacherRoute(dataset, _spec(to={"maths": "a", "code/short": "b"}))
    assert route.of_rows([0, 1]).tolist() == [1, 0]


def test_values_that_lead_to_no_teacher_are_named_with_their_number(dataset):
    with pytest.raises(SpecError) as caught:
        TeacherRoute(dataset, _spec(to={"code/short": "b"}))
    first, second = caught.value.problems
    assert (first.path, second.path) == ("route.to.maths", "route.to.chat")
    assert first.rule == "2 of 4 training prompts have 'maths' in the column data_source, which leads to no teacher"
    assert "one of a, b" in first.fix


def test_a_column_that_the_data_lack_is_refused(dataset):
    with pytest.raises(SpecError) as caught:
        TeacherRoute(dataset, _spec(by="topic", to={"x": "b"}))
    (problem,) = caught.value.problems
    assert (problem.path, problem.value) == ("route.by", "topic")
    assert "data_source, level" in problem.fix
