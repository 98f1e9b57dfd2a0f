"""The front door looks at each of several teachers: folder, code of its own, tokens."""

import pytest
from safetensors.torch import save_file
from tests.inputs.families import QWEN2_5, QWEN3, QWEN_TEMPLATE, save_tokenizer

from opd.errors import Unfit
from opd.experiment import SpecError, parse_tree
from opd.experiment.run_config import RunConfig, RunFacts
from opd.inputs import Inputs, check_inputs
from opd.trainer.entry import compose, prepare


def _spec(student: str, a: str, b: str):
    teachers = {"teachers": {"a": {"path": a}, "b": {"path": b}}, "route": {"to": {"x": "a", "y": "b"}}}
    data = {"train": ["toy://train"], "val": ["toy://heldout"], "max_prompt_length": 32, "max_response_length": 8}
    return parse_tree({"kind": "opd", "device": "cpu", "model": {"path": student}, **teachers, "data": data}).spec


@pytest.fixture
def folders(tmp_path) -> dict[str, str]:
    added = {"student": QWEN2_5, "same": QWEN2_5, "more": QWEN3}
    found = {}
    for name, tokens in added.items():
        found[name] = save_tokenizer(tmp_path / name, tokens, eos="<|im_end|>", template=QWEN_TEMPLATE)
        save_file({}, tmp_path / name / "model.safetensors")  # no weight is read here
    return found


def _prepared(spec, tmp_path) -> RunConfig:
    config = compose(spec, RunFacts(run_id="r", run_dir=str(tmp_path)))
    prepare(config)
    return RunConfig.of(config)


@pytest.mark.slow
def test_teachers_with_the_students_tokens_are_read_from_their_folders(folders, tmp_path):
    ours = _prepared(_spec(folders["student"], folders["same"], folders["student"]), tmp_path)
    assert ours.teacher_paths == {"teachers.a": folders["same"], "teachers.b": folders["student"]}
    assert ours.run.valid_vocab == ours.run.student_vocab == ours.run.teacher_vocab > 0


@pytest.mark.slow
def test_a_teacher_with_more_tokens_is_refused_beside_others(folders, tmp_path):
    with pytest.raises(Unfit, match=r"teachers\.b\.path=.*must have the student's tokens"):
        _prepared(_spec(folders["student"], folders["same"], folders["more"]), tmp_path)


def test_every_teacher_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SpecError) as caught:
        check_inputs(Inputs.of(_spec("toy://student", str(tmp_path / "a"), str(tmp_path / "b"))))
    assert [problem.path for problem in caught.value.problems] == ["teachers.a.path", "teachers.b.path"]
