"""The reward: right answers and plans score 1, whatever else a model writes is a score and never an accident."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.opd_envs.travel.worlds import NUM_CITIES

from opd.agent.tools import render
from opd.rewards import compute_score as compute_score_in_pool
from opd_envs.travel.answers import says
from opd_envs.travel.database import ManifestError, open_database
from opd_envs.travel.generate import GRADES, generate_task
from opd_envs.travel.make_database import write_database
from opd_envs.travel.plan import find_answer, last_block
from opd_envs.travel.reward import compute_score
from opd_envs.travel.task import task_text

PATIENCE_S = 60.0
PLAN_ENTRIES = {"commonsense_plan_given", "commonsense_cost_stated", "hard_budget", "commonsense", "hard"}


def made(database, grade: int, number: int = 0, language: str = "en"):
    return generate_task(
        database, seed=5, grade=grade, language=language, number=number, episodes=True, num_cities=None
    )


def reward(database_dir, task, text: str, **extra_info):
    info = {"episode_seed": task.episode_seed, **extra_info}
    return compute_score("travel_en", text, task_text(task.task), info, database_dir=str(database_dir))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("grade", GRADES)
def test_a_generated_solution_scores_one_with_an_entry_for_each_constraint(database_dir, database, grade, language):
    for number in range(5):
        task = made(database, grade, number, language)
        row = reward(database_dir, task, f"Let me look. {task.solution} Have a nice day.")
        assert row["score"] == row["acc"] == 1.0
        assert all(value == 1.0 for name, value in row.items() if name != "pred")
        expected = PLAN_ENTRIES if grade >= 2 else {"question_answer_given", "question_answer_right"}
        assert expected <= set(row)


def test_the_right_price_is_that_of_the_episode_and_no_other(database_dir, database):
    task = made(database, 0)
    other = made(database, 0)._replace(episode_seed=task.episode_seed + 1)
    assert reward(database_dir, task, task.solution)["score"] == 1.0
    assert reward(database_dir, other, task.solution)["score"] == 0.0
    right = database.in_episode(other.episode_seed)
    price = right.place(right.city(task.task.city), task.task.name).price
    assert reward(database_dir, other, f"<answer>{price}</answer>")["score"] == 1.0


@pytest.mark.parametrize(
    ("answer", "right", "expected"),
    [
        ("437", "437", True),
        (" ¥437 a night ", "437", True),
        ("1,437", "1437", True),
        ("0437", "437", True),
        ("437元", "437", True),
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


ACTIVITIES = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["train", "flight", "attraction", "meal", "other"]),
        "name": st.text(max_size=5) | st.sampled_from(["G1000", "FL2000"]) | st.integers(),
        "start": st.sampled_from(["00:00", "09:30", "24:00", "25:00"]) | st.integers(-5, 2000),
        "end": st.sampled_from(["00:00", "23:30", "x"]) | st.integers(-5, 2000),
    }
)
DAYS = st.fixed_dictionaries(
    {
        "day": st.integers(-1, 4) | st.text(max_size=2),
        "activities": st.lists(ACTIVITIES, max_size=4),
        "hotel": st.none() | st.text(max_size=3),
    }
)
PLANS = st.fixed_dictionaries({"days": st.lists(DAYS, max_size=4), "total_cost": st.integers() | st.floats()})


@pytest.mark.slow
@given(plan=PLANS)
def test_any_plan_like_text_is_a_score_between_zero_and_one(database_dir, plan):
    task = made(open_database(database_dir), 3)
    row = reward(database_dir, task, f"<plan>{json.dumps(plan)}</plan>")
    assert 0.0 <= row["score"] < 1.0
    assert row["acc"] == 0.0


def test_it_runs_in_the_killable_scorer_pool_by_its_name(database_dir, database):
    task = made(database, 4)
    options = {
        "function": "opd.agent.environments:compute_score",
        "timeout_s": PATIENCE_S,
        "database_dir": str(database_dir),
        "toolset": "travel",
    }
    info = {"episode_seed": task.episode_seed, "index": 0}
    for text, score in ((task.solution, 1.0), (f"{'x' * 1_000_000}", 0.0)):
        row = compute_score_in_pool("travel_en", text, task_text(task.task), info, **options)
        assert (row["score"], row["failed"]) == (score, 0)
        assert row["hard_budget"] == score


def test_the_database_comes_from_the_option_the_row_or_the_environment(database_dir, database, monkeypatch):
    task = made(database, 0)
    truth = task_text(task.task)
    info = {"episode_seed": task.episode_seed}
    monkeypatch.delenv("DATABASE_DIR", raising=False)
    with pytest.raises(ManifestError, match=r"pass database_dir .* or set DATABASE_DIR"):
        compute_score("travel_en", task.solution, truth, info)
    assert (
        compute_score("x", task.solution, truth, info | {"database_dir": str(database_dir), "toolset": "travel"})[
            "score"
        ]
        == 1.0
    )
    monkeypatch.setenv("DATABASE_DIR", str(database_dir))
    assert compute_score("x", task.solution, truth, info)["score"] == 1.0


def test_a_task_of_another_database_is_refused_not_scored(database_dir, database, tmp_path):
    task = made(database, 3)
    info = {"database_id": task.database_id}
    assert reward(database_dir, task, task.solution, **info)["acc"] == 1.0
    write_database(tmp_path / "other", seed=8, num_cities=NUM_CITIES)
    with pytest.raises(ManifestError, match=rf"this task was made for {task.database_id}"):
        reward(tmp_path / "other", task, task.solution, **info)
