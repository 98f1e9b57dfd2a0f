"""A training run's prompts get their weights by their content, and prompts of weight 0 leave without changing the others."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from torch import tensor
from transformers import AutoTokenizer

from opd.data.toy import STUDENT_DIR
from opd.evaluation.pass_rates import WEIGHTS_KEY, PassRate, prompt_id, write_pass_rates
from opd.experiment import SpecError
from opd.experiment.algorithm import Opd, ProblemImportance
from opd.rollout.rows import Order, row_of
from opd.trainer.dataset import PromptDataset
from opd.trainer.problem_weights import prompt_weights
from opd.trainer.row_facts import RowFacts

QUESTIONS = ["10+10=", "11+11=", "12+12=", "13+13="]
RATES = [0.0, 0.25, 0.5, 1.0]  # p (1 - p): 0, 3/16, 4/16, 0, with a mean of 7/64


def _message(question: str) -> list[dict]:
    return [{"role": "user", "content": question}]


@pytest.fixture
def dataset(tmp_path) -> PromptDataset:
    rows = [
        {"data_source": "toy_add", "prompt": _message(question), "reward_model": {"ground_truth": "9"}}
        for question in QUESTIONS
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    config = OmegaConf.create({"max_prompt_length": 16, "prompt_key": "prompt"})
    return PromptDataset([str(tmp_path / "train.parquet")], AutoTokenizer.from_pretrained(STUDENT_DIR), config)


def _problems(tmp_path, rates=None, **keys) -> ProblemImportance:
    """The section, with a file of these rates, written in the opposite order."""
    path = tmp_path / "pass_rates.parquet"
    rates = dict(zip(QUESTIONS, RATES, strict=True)) if rates is None else rates
    rows = [PassRate(prompt_id(_message(question), "9"), rate, 4, "m") for question, rate in rates.items()]
    write_pass_rates(path, reversed(rows))
    return ProblemImportance(**{"weights": "competence", "pass_rates": str(path)} | keys)


def test_each_prompt_gets_its_weight_whatever_the_order_of_the_file(dataset, tmp_path):
    weights = prompt_weights(dataset, _problems(tmp_path, drop=False))
    torch.testing.assert_close(weights, tensor([0, 12 / 7, 16 / 7, 0]))
    assert len(dataset) == 4


def test_prompts_of_weight_0_leave_the_data_and_the_others_weigh_what_they_did(dataset, tmp_path):
    weights = prompt_weights(dataset, _problems(tmp_path))
    torch.testing.assert_close(weights, tensor([12 / 7, 16 / 7]))
    assert float(weights.sum()) / len(QUESTIONS) == pytest.approx(1.0)
    assert [row["raw_prompt"][0]["content"] for row in dataset] == QUESTIONS[1:3]
    assert [row["index"] for row in dataset] == [0, 1]
    assert (dataset.places, dataset.left_out.total()) == ([1, 2], 2)


def test_prompts_without_a_pass_rate_are_counted_and_named(dataset, tmp_path):
    with pytest.raises(SpecError) as caught:
        prompt_weights(dataset, _problems(tmp_path, {"11+11=": 0.5, "99+99=": 0.5}))
    [problem] = caught.value.problems
    assert problem.path == "opd.importance.problems.pass_rates"
    assert problem.value == str(tmp_path / "pass_rates.parquet")
    assert (
        "3 of 4 training prompts have no pass rate in it (rows 1, 3, 4, counted from 1; it has 2 prompts)"
        in problem.rule
    )
    assert "kind passrate" in problem.fix


def test_a_run_keeps_rates_and_weights_of_all_prompts_for_its_report(dataset, tmp_path):
    run = SimpleNamespace(keep=lambda files: [(tmp_path / name).write_bytes(data) for name, data in files.items()])
    (tmp_path / WEIGHTS_KEY).parent.mkdir()
    prompt_weights(dataset, _problems(tmp_path), run)
    kept = pq.read_table(tmp_path / WEIGHTS_KEY).to_pydict()
    assert kept["pass_rate"] == RATES
    assert kept["weight"] == pytest.approx([0, 12 / 7, 16 / 7, 0])


def _weigh_step(dataset, problems, reward_beta) -> tuple[torch.Tensor, dict[str, float]]:
    """Weigh a step of two rows of data row 1, then two of data row 0."""
    importance = ProblemImportance(**problems)
    opd = Opd(max_length=9, reward_beta=reward_beta)
    facts = RowFacts(opd=opd, weights=prompt_weights(dataset, importance), route=None, prompts=None)
    rows = []
    for place, reward in enumerate([1.0, 0.0, 0.0, 0.0]):
        rows.append(row_of(Order(1 - place // 2, place % 2), f"prompt {place // 2}", [1], [2], [1]))
        rows[-1].columns["rm_scores"] = tensor([reward])
    metrics = facts.put(rows)
    return torch.stack([row.columns["sample_weights"] for row in rows]), metrics


def test_a_rollouts_weights_by_prompt_and_by_reward_are_multiplied(dataset, tmp_path):
    problems = {"weights": "competence", "pass_rates": _problems(tmp_path).pass_rates}
    weights, metrics = _weigh_step(dataset, problems, 1.0)
    share = 1 / (1 + torch.e**-1)  # of a reward of 1 next to a reward of 0
    by_hand = tensor([16 / 7 * 2 * share, 16 / 7 * 2 * (1 - share), 12 / 7, 12 / 7])
    torch.testing.assert_close(weights, by_hand)
    assert metrics["opd/reward_weight_max"] == pytest.approx(2 * share)
