"""A teacher's stored answers in the place of sampled ones: the right ones, the same at every start, or an error."""

from __future__ import annotations

from dataclasses import replace

import pytest
from omegaconf import OmegaConf
from transformers import AutoTokenizer

from opd.config import SpecError, parse_tree
from opd.config.run_config import RunConfig, RunFacts
from opd.data.toy import STUDENT_DIR
from opd.data.toy.task import DATA_SOURCE, split_problems, write_parquet
from opd.evaluation.samples import Sample, write_generations
from opd.trainer.dataset import PromptDataset
from opd.trainer.sft import SftTrainer
from opd.trainer.teacher_answers import TeacherAnswers
from opd.trainer.trainer import OrderedTrainer

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


def stored(path, samples) -> list[str]:
    write_generations(path, samples)
    return [str(path)]


def texts(found: TeacherAnswers, tokenizer, index: int, **asked) -> list[str]:
    return [tokenizer.decode(ids) for ids in found.of(index, **asked)]


@pytest.mark.slow
def test_each_prompt_gets_answers_to_itself_each_ended_and_none_twice(tmp_path, dataset, tokenizer):
    found = TeacherAnswers(stored(tmp_path / "a.parquet", answers(3)), dataset, tokenizer, seed=1, key=KEY)
    for index in range(NUM_PROMPTS):
        truth = int(dataset.dataframe[index]["reward_model"]["ground_truth"])
        expected = {f"{truth + number:03d}{tokenizer.eos_token}" for number in range(3)}
        assert set(texts(found, tokenizer, index, step=4, num_samples=3)) == expected
        assert len(found.of(index, step=4, num_samples=5)) == 5


@pytest.mark.slow
def test_the_answers_of_a_step_depend_on_seed_step_and_prompt_alone(tmp_path, dataset, tokenizer):
    files = stored(tmp_path / "a.parquet", answers(3))
    one, again, other = (TeacherAnswers(files, dataset, tokenizer, seed=seed, key=KEY) for seed in (1, 1, 2))
    steps = range(1, 9)
    drawn = [[found.of(0, step=step, num_samples=1) for step in steps] for found in (one, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({str(ids) for ids in drawn[0]}) == 3, "over the steps every answer has its turn"


@pytest.mark.slow
def test_an_answer_that_was_cut_off_gets_no_end(tmp_path, dataset, tokenizer):
    files = stored(tmp_path / "a.parquet", [replace(sample, truncated=True) for sample in answers(1)])
    found = TeacherAnswers(files, dataset, tokenizer, seed=1, key=KEY)
    assert tokenizer.eos_token not in texts(found, tokenizer, 0, step=1, num_samples=1)[0]


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
        TeacherAnswers(files, dataset, tokenizer, seed=1, key=KEY)
    [problem] = caught.value.problems
    assert problem.path == KEY
    assert "`kind: eval` run of the teacher" in problem.fix


def test_a_file_with_other_columns_is_refused(tmp_path, dataset, tokenizer):
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    prompts, _ = write_parquet(tmp_path / "toy", seed=3)
    for path in (tmp_path / "a.parquet", prompts):
        with pytest.raises(SpecError, match="the file cannot be read"):
            TeacherAnswers([str(path)], dataset, tokenizer, seed=1, key=KEY)


@pytest.mark.slow
@pytest.mark.parametrize(("test_freq", "before", "is_needed"), [(-1, False, False), (5, False, True), (-1, True, True)])
def test_a_run_that_never_validates_needs_no_answers_to_its_validation_prompts(
    tmp_path, dataset, tokenizer, monkeypatch, test_freq, before, is_needed
):
    _, held_out = write_parquet(tmp_path, seed=3)
    trainer = object.__new__(SftTrainer)
    tree = {
        "kind": "sft", "model": {"path": "m"}, "data": {"train": "t.parquet", "val": "v.parquet"},
        "sft": {"teacher_answers": stored(tmp_path / "a.parquet", answers(1))},
        "trainer": {"test_freq": test_freq, "val_before_train": before},
    }  # fmt: skip
    trainer.ours = RunConfig(spec=parse_tree(tree).spec, run=RunFacts(run_id="r", run_dir=None))
    trainer.tokenizer, trainer.train_dataset = tokenizer, dataset
    trainer.val_dataset = PromptDataset([str(held_out)], tokenizer, dataset.config)
    monkeypatch.setattr(OrderedTrainer, "_init_dataloader", lambda self: None)  # has made the data sets
    if not is_needed:
        trainer._init_dataloader()
        return
    with pytest.raises(SpecError, match=r"477 of 477 prompts have no answer"):
        trainer._init_dataloader()
