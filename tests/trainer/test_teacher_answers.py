"""A teacher's stored answers in the place of sampled ones: the right ones, the same at every start, or an error."""

from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from opd.agent.trajectories import NUM_ANSWERS, file_key, from_lines
from opd.data.answered import answer_row
from opd.data.toy import STUDENT_DIR
from opd.data.toy.task import DATA_SOURCE, split_problems, write_parquet
from opd.evaluation.events import join, write_part
from opd.evaluation.samples import Sample, write_generations
from opd.experiment import SpecError, parse_tree
from opd.experiment.run_config import RunConfig, RunFacts
from opd.job import Data, Job
from opd.kinds import Grpo, Sft
from opd.rollout.rows import IDS, LOG_PROBS, Order, row_of
from opd.runs.run import Run
from opd.trainer.conversations import GivenAnswers
from opd.trainer.dataset import PromptDataset
from opd.trainer.teacher_answers import TeacherAnswers

NUM_PROMPTS = 6
KEY = "opd.teacher_answers"


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(STUDENT_DIR)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, tokenizer) -> PromptDataset:
    train, _ = write_parquet(tmp_path_factory.mktemp("toy"), seed=3)
    config = OmegaConf.create(
        {
            "max_prompt_length": 16, "filter_overlong_prompts": True, "return_raw_chat": True, "prompt_key": "prompt",
            "shuffle": True, "seed": 1,
        }
    )  # fmt: skip
    return PromptDataset([str(train)], tokenizer, config, max_samples=NUM_PROMPTS)


def answers(num: int, **changes) -> list[Sample]:
    """`num` answers to every training problem: the sum, one more, and so on."""
    return [
        Sample(
            run_id="teacher", step=0, data_source=DATA_SOURCE, problem_index=problem.pair_index, sample_index=number,
            prompt=problem.question, response=f"{problem.a + problem.b + number:03d}", pred="", score=1.0, acc=1.0,
            ground_truth=problem.answer, failed=False, num_tokens=4, truncated=False,
        )
        for problem in split_problems().train
        for number in range(num)
    ]  # fmt: skip


def test_the_teachers_own_token_ids_are_taken_where_the_student_reads_them_alike(tmp_path, dataset, tokenizer):
    end, twice = tokenizer.eos_token_id, tokenizer("0", add_special_tokens=False)["input_ids"] * 2
    ids = array("i", [end, *twice, end])  # a special token within, which the text lacks
    same = [replace(one, response="00", response_ids=ids) for one in answers(1)]
    assert of_first(tmp_path / "a.parquet", same, dataset) == list(ids)
    other = [replace(one, response="00", response_ids=array("i", [*twice, *twice])) for one in answers(1)]
    assert of_first(tmp_path / "b.parquet", other, dataset) == [*twice, end]
    cut = [replace(one, truncated=True) for one in other]
    assert of_first(tmp_path / "c.parquet", cut, dataset) == twice, "an answer that was cut off gets no end"


def test_an_answer_has_the_events_that_its_file_holds(tmp_path, dataset, tokenizer):
    ids = tokenizer("07", add_special_tokens=False)["input_ids"]
    samples = [replace(one, response="07", response_ids=array("i", ids)) for one in answers(2)]
    with pytest.raises(SpecError, match=r"an evaluation with teacher\.url"):
        TeacherAnswers(stored(file := tmp_path / "a.parquet", samples), dataset, seed=1, key=KEY).check_events()
    tokens = [torch.tensor([[token, number] for token in ids], dtype=torch.int32) for number in range(2)]
    of = [{IDS: one, LOG_PROBS: -torch.rand(one.shape)} for one in tokens]
    write_part(part := tmp_path / "part.parquet", [(one, of[one.sample_index]) for one in samples])
    join(file, samples, [part])
    found = TeacherAnswers([str(file)], dataset, seed=1, key=KEY)
    found.check_events()
    drawn = [found.events(0, step=1, sample=number) for number in range(2)]
    assert sorted(int(one[IDS][0, 1]) for one in drawn) == [0, 1]
    assert all(torch.equal(one[name], of[int(one[IDS][0, 1])][name]) for one in drawn for name in one)


def of_first(path, samples, dataset) -> list[int]:
    [found] = TeacherAnswers(stored(path, samples), dataset, seed=1, key=KEY).of(0, step=1, num_samples=1)
    return found


def stored(path, samples) -> list[str]:
    write_generations(path, samples)
    return [str(path)]


def texts(found: TeacherAnswers, tokenizer, index: int, **asked) -> list[str]:
    return [tokenizer.decode(ids) for ids in found.of(index, **asked)]


@pytest.mark.slow
def test_each_prompt_gets_answers_to_itself_each_ended_and_none_twice(tmp_path, dataset, tokenizer):
    found = TeacherAnswers(stored(tmp_path / "a.parquet", answers(3)), dataset, seed=1, key=KEY)
    for index in range(NUM_PROMPTS):
        truth = int(dataset.dataframe[index]["reward_model"]["ground_truth"])
        expected = {f"{truth + number:03d}{tokenizer.eos_token}" for number in range(3)}
        assert set(texts(found, tokenizer, index, step=4, num_samples=3)) == expected
        assert len(found.of(index, step=4, num_samples=5)) == 5


@pytest.mark.slow
def test_the_answers_of_a_step_depend_on_seed_step_and_prompt_alone(tmp_path, dataset, tokenizer):
    files = stored(tmp_path / "a.parquet", answers(3))
    one, again, other = (TeacherAnswers(files, dataset, seed=seed, key=KEY) for seed in (1, 1, 2))
    steps = range(1, 9)
    drawn = [[found.of(0, step=step, num_samples=1) for step in steps] for found in (one, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({str(ids) for ids in drawn[0]}) == 3, "over the steps every answer has its turn"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda samples: samples[: len(samples) // 100], "of 6 prompts have no answer in"),
        (lambda samples: [replace(s, ground_truth="1") for s in samples], "6 of 6 prompts have another ground truth"),
    ],
)  # fmt: skip
def test_prompts_without_an_answer_and_answers_to_other_questions_are_refused(
    tmp_path, dataset, tokenizer, change, words
):
    files = stored(tmp_path / "a.parquet", change(answers(1)))
    with pytest.raises(SpecError, match=words) as caught:
        TeacherAnswers(files, dataset, seed=1, key=KEY)
    [problem] = caught.value.problems
    assert problem.path == KEY
    assert "`kind: eval` run of the teacher" in problem.fix


def test_a_file_with_other_columns_is_refused(tmp_path, dataset, tokenizer):
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    prompts, _ = write_parquet(tmp_path / "toy", seed=3)
    for path in (tmp_path / "a.parquet", prompts):
        with pytest.raises(SpecError, match="the file cannot be read"):
            TeacherAnswers([str(path)], dataset, seed=1, key=KEY)


def _sft(tmp_path, dataset, tokenizer, **trainer) -> Sft:
    """The kind of a run on a teacher's answers to the training prompts alone."""
    _, held_out = write_parquet(tmp_path, seed=3)
    tree = {
        "kind": "sft", "model": {"path": "m"}, "data": {"train": "t.parquet", "val": "v.parquet"},
        "sft": {"teacher_answers": stored(tmp_path / "a.parquet", answers(8))}, "trainer": trainer,
    }  # fmt: skip
    val = PromptDataset([str(held_out)], tokenizer, dataset.config)
    ours = RunConfig(spec=parse_tree(tree).spec, run=RunFacts(run_id="r", run_dir="out/r"))
    data = SimpleNamespace(train=dataset, val=val, tokenizer=tokenizer, ours=ours, begin=lambda: None)
    return Sft(cast(Data, data), cast(Run, None))


@pytest.mark.slow
@pytest.mark.parametrize(("test_freq", "before"), [(5, False), (-1, True)])
def test_a_run_that_validates_needs_answers_to_its_validation_prompts(tmp_path, dataset, tokenizer, test_freq, before):
    with pytest.raises(SpecError, match=r"477 of 477 prompts have no answer"):
        _sft(tmp_path, dataset, tokenizer, test_freq=test_freq, val_before_train=before)


@pytest.mark.slow
def test_a_teachers_answer_is_drawn_for_each_step_and_is_the_whole_of_what_is_trained(tmp_path, dataset, tokenizer):
    kind = _sft(tmp_path, dataset, tokenizer, test_freq=-1, val_before_train=False)
    dataset.config.max_response_length = 3
    given = GivenAnswers(dataset, kind.spec)
    drawn = [given.row(0, step) for step in range(1, 9)]
    assert drawn == [given.row(0, step) for step in range(1, 9)]
    assert len({tuple(row.response) for row in drawn}) > 1, "another answer in another step"
    answered = TeacherAnswers(kind.spec.sft.teacher_answers, dataset, seed=kind.spec.seed, key=KEY)
    [whole] = answered.of(0, step=1, num_samples=1)
    assert drawn[0] == answer_row(tokenizer, dataset.dataframe[0]["prompt"], whole).cut(3)
    [row], num_cut = given.rows([0], 1)
    assert (row.response.tolist(), num_cut) == (drawn[0].response, 1)


class Four(list[None]):
    """A validation set of four rows."""

    num_overlong_dropped = 0

    def __len__(self) -> int:
        return 4


def test_a_validation_of_fine_tuning_tells_its_progress(monkeypatch, capsys):
    kind = Sft.__new__(Sft)
    data = {"train_batch_size": 2, "train": ["t.jsonl"], "val": ["v.jsonl"]}
    tree = {"kind": "sft", "model": "m", "device": "cpu", "data": data}
    kind.ours = RunConfig(spec=parse_tree(tree).spec, run=RunFacts(run_id="r", run_dir="out/r"))
    kind.data = cast(Data, SimpleNamespace(val=Four()))
    kind._val = cast(GivenAnswers, SimpleNamespace(rows=lambda indices, step: (list(indices), 0)))
    monkeypatch.setattr("opd.kinds.TELL_S", -1.0)
    job = SimpleNamespace(call_ranks=lambda name, rows: ({"sum/loss": [1.0], "sum/tokens": [2.0]}, {}))
    assert kind.validate(cast(Job, job), 1)["val-aux/loss"] == 0.5
    assert "2 of 4 validation rows have been read" in capsys.readouterr().out


def test_a_validation_keeps_its_first_problems_with_their_truth(tokenizer):
    files: dict[str, bytes] = {}
    data, run = SimpleNamespace(tokenizer=tokenizer), SimpleNamespace(keep=files.update)
    rows = [row_of(Order(index, sample), str(index), [5], [6], [1]) for index in range(9, -1, -1) for sample in (1, 0)]
    for row in rows:
        row.columns["rm_scores"] = torch.tensor([float(row.order.index)])
    prompts = [{"uid": str(index), "reward_model": {"ground_truth": index}} for index in range(10)]
    Grpo._keep_answers(cast(Grpo, SimpleNamespace(data=data, run=run)), rows, prompts, 4)
    kept = [(one.data_index, one.sample, one.score, one.ground_truth) for one in from_lines(files[file_key("validation", 4)])]  # fmt: skip
    assert kept == [(index, 0, float(index), str(index)) for index in range(NUM_ANSWERS)]
