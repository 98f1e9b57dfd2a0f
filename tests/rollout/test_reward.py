"""The reward function, looked at before there is an answer, and called for one."""

import asyncio

import pytest
from omegaconf import OmegaConf

from opd.errors import UnusableInput
from opd.rollout.reward import Scorer, check_reward

VERL_SIGNATURE = "data_source, solution_str, ground_truth, extra_info=None"


def reward(**kwargs) -> None:
    function = {"path": "pkg://opd.rewards", "reward_kwargs": {"timeout_s": 5.0, **kwargs}}
    check_reward(OmegaConf.create({"reward": {"custom_reward_function": function}}))


def scorer(folder, source: str) -> str:
    (folder / "scorer.py").write_text(source)
    return f"{folder / 'scorer.py'}:score"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (f"import no_such_library\ndef score({VERL_SIGNATURE}): ...\n", "No module named 'no_such_library'"),
        ("def score(answer, truth): ...\n", "unexpected keyword argument|missing a required argument"),
        (f"def grade({VERL_SIGNATURE}): ...\n", "no attribute 'score'"),
        (f"import os\nos._exit(4)\ndef score({VERL_SIGNATURE}): ...\n", "its process died"),
    ],
)
def test_a_reward_function_that_could_score_nothing_is_found_before_there_is_an_answer(tmp_path, source, says):
    with pytest.raises(UnusableInput, match=f"reward.function: .*scorer.py:score cannot score: .*({says})"):
        reward(function=scorer(tmp_path, source))


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"function": "maths"}, "must be one of exact_match"),
        ({"function": "math_dapo", "strict": True}, "has no option strict"),
        ({"function": "/nowhere/scorer.py:score"}, "there is no Python file /nowhere/scorer.py"),
    ],
)
def test_a_reward_function_that_does_not_exist_is_named(kwargs, says):
    with pytest.raises(UnusableInput, match=says):
        reward(**kwargs)


@pytest.mark.parametrize("definition", ["def", "async def"])
def test_a_function_in_verls_own_keys_gets_the_rows_facts_and_those_of_its_conversation(tmp_path, definition):
    body = "return extra_info['split'] + extra_info['ending'] + solution_str + ground_truth + data_source"
    (tmp_path / "own.py").write_text(f"{definition} score({VERL_SIGNATURE}):\n    {body}\n")
    function = {"path": str(tmp_path / "own.py"), "name": "score", "reward_kwargs": {}}
    scorer = Scorer(OmegaConf.create({"reward": {"custom_reward_function": function}}))
    prompt = {"data_source": "d", "reward_model": {"ground_truth": "t"}, "extra_info": {"split": "s", "ending": "old"}}
    assert asyncio.run(scorer.score("a", prompt, {"ending": "e"})) == {"score": "seatd", "acc": "seatd"}
    assert prompt["extra_info"]["ending"] == "old"
