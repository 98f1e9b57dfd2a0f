"""The reward: right answers and plans score 1, and any other text is a score between 0 and 1."""

import pytest
from tests.opd_envs.travel.conftest import NUM_CITIES
from tests.scoring import compute_score as compute_score_in_pool

from opd.agent.tools import render
from opd_envs.database_folder import ManifestError
from opd_envs.scoring import last_block, task_text
from opd_envs.travel.answers import find_answer, says
from opd_envs.travel.generate import generate_task
from opd_envs.travel.make_database import write_database
from opd_envs.travel.reward import compute_score


def made(database, grade: int):
    return generate_task(database, seed=5, grade=grade, language="en", number=0)


def reward(database_dir, task, text: str, **extra_info):
    info = {"episode_seed": task.episode_seed, **extra_info}
    return compute_score("travel_en", text, task_text(task.task), info, database_dir=str(database_dir))


def test_the_right_price_is_that_of_the_episode_and_no_other(database_dir, database):
    task = made(database, 0)
    other = task._replace(episode_seed=task.episode_seed + 1)
    assert reward(database_dir, task, task.solution)["score"] == 1.0
    assert reward(database_dir, other, task.solution)["score"] == 0.0
    right = database.in_episode(other.episode_seed)
    price = right.place(right.city(task.task.city), task.task.name).price
    assert reward(database_dir, other, f"<answer>{price}</answer>")["score"] == 1.0


@pytest.mark.parametrize(
    ("answer", "right", "expected"),
    [
        (" ¥437 a night ", "437", True),
        ("1,437", "1437", True),
        ("0437元", "437", True),
        ("437 or 438", "437", False),
        ("1437", "437", False),
        ("", "437", False),
        ("Jade  inn.", "Jade Inn", True),
        ("清风山庄。", "清风山庄", True),
        ("Jade Inn and Lotus Inn", "Jade Inn", False),
        ("g1004", "G1004", True),
    ],
)
def test_an_answer_is_right_if_it_says_the_one_thing(answer, right, expected):
    assert says(answer, right) is expected


def test_the_last_answer_counts_and_a_tools_reply_is_none():
    reply = render({"message": "<answer>1</answer>"})
    assert find_answer(reply) is None
    assert find_answer(f"<answer>2</answer> {reply} <answer> 3 </answer> {reply}") == "3"
    assert find_answer("<answer>3") is None
    assert find_answer("no", final_text="437") == "437"  # the last turn alone: without tags it is the answer
    assert find_answer("<answer>1</answer>", final_text="<tool_call>{}</tool_call>") is None
    assert find_answer("x", final_text="so: <answer>5</answer>") == "5"
    assert find_answer("x", final_text="a" * 5000) is None
    assert last_block("<plan>a</plan> <plan>b</plan> <plan>c", "plan") == "b"


def test_it_runs_in_the_killable_scorer_pool_by_its_name(database_dir, database):
    task = made(database, 4)
    options = {"function": "opd.agent.environments:compute_score", "timeout_s": 60.0, "toolset": "travel"}
    info = {"episode_seed": task.episode_seed, "index": 0}
    for text, score in ((task.solution, 1.0), (f"{'x' * 1_000_000}", 0.0)):
        row = compute_score_in_pool("x", text, task_text(task.task), info, database_dir=str(database_dir), **options)
        assert (row["score"], row["failed"], row["hard_budget"]) == (score, 0, score)


def test_a_task_of_another_database_is_rejected_not_scored(database_dir, database, tmp_path):
    task = made(database, 3)
    info = {"database_id": task.database_id}
    assert reward(database_dir, task, task.solution, **info)["acc"] == 1.0
    write_database(tmp_path / "other", seed=8, num_cities=NUM_CITIES)
    with pytest.raises(ManifestError, match=rf"this task was made for {task.database_id}"):
        reward(tmp_path / "other", task, task.solution, **info)
