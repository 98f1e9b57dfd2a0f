"""A scripted conversation over the imported database: the loop's own dialogue, real tool processes, the reward, every token's mask."""

import json
from dataclasses import replace

import pytest
from tests.agent.talk import call
from tests.agent_evidence.play import make_environment, play
from tests.agent_evidence.settings import settings
from tests.opd_envs.deepplanning.published import DATE, WORDS
from transformers import AutoTokenizer

from opd.agent.metrics import AgentCounts
from opd.agent.settings import CASE_ID
from opd.rollout.cpu.server import ScriptConfig
from opd_envs.deepplanning.task import BenchmarkTrip
from opd_envs.rows import agent_row
from opd_envs.travel.task import task_text
from opd_envs.travel.toy import STUDENT, model_folder

FOLDER = model_folder(STUDENT)


def row(language: str, case: str):
    task = BenchmarkTrip(origin="A", num_days=1, required_names={"hotel": (WORDS[language]["inn"],)})
    return agent_row(
        task_text(task), [{"role": "user", "content": "plan"}], data_source=f"deepplanning_travel_{language}", split="val", index=0,
        problem_id="x", language=language, case_id=f"{language}/{case}", tool_selection=("query_hotel_info",),
    )  # fmt: skip


def plan_at(hotel: str) -> str:
    """A plan of one day in the benchmark's form that has nothing but a meal and the hotel that the row asks for."""
    meal = {"time_slot": "12:00-13:00", "type": "meal", "details": {"name": "x", "cost": 1}}
    day = {"current_city": "x", "accommodation": {"name": hotel, "price_per_night": 301}, "activities": [meal]}
    plan = {"daily_plans": [day], "budget_summary": {"total_estimated_budget": 302}}
    return f"<plan>{json.dumps(plan, ensure_ascii=False)}</plan>"


def settings_of(imported, language: str):
    found = settings(imported)
    return replace(
        found,
        toolset=f"deepplanning-{language}",
        max_reply_tokens=400,
        limits=replace(found.limits, max_prompt_tokens=2000, max_response_tokens=2000),
    )


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("thinks", [None, True, False])
def test_thinking_on_and_off_with_a_call_and_in_a_single_turn(imported, language, thinks):
    name = WORDS[language]["inn"]
    plan = plan_at(name)
    thought = "" if thinks is False else f"<think>{call('query_hotel_info')} or not?</think>"
    asked = call("query_hotel_info", destination="x", checkinDate=DATE, checkoutDate=DATE)
    scripts = {"asks": [thought + asked, thought + plan], "knows": [thought + plan]}
    rows = [row(language, "1") | {"prompt": [{"role": "user", "content": key}]} for key in scripts]
    kwargs = () if thinks is None else (("enable_thinking", thinks),)
    found = replace(settings_of(imported, language), chat_template_kwargs=kwargs)
    script = ScriptConfig(replies=scripts, tokenizer_path=str(FOLDER))
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    for played, turns in zip(play(FOLDER, rows, found, script=script), scripts.values(), strict=True):
        dialogue = played.dialogue
        assert [len(turn.calls) for turn in dialogue.turns] == [1] * (len(turns) - 1) + [0], (
            "a call in a thought is none"
        )
        assert played.breakdown["hard_hotel"] == 1.0, "the plan has the hotel that the row asks for"
        tokens = zip(dialogue.response_ids, dialogue.mask, strict=True)
        trained = tokenizer.decode([token for token, mask in tokens if mask], skip_special_tokens=True)
        assert trained == "".join(turns), "the template's own empty thought is not the model's"
        assert tokenizer.decode(dialogue.prompt_ids).endswith("<think>\n\n</think>\n\n") is (thinks is False)
        counts = AgentCounts.of(dialogue).metrics()
        assert counts["num_turns/max"] == 2 * len(turns)
        assert (counts["tool_mask/tool_tokens"] > 0) is (len(turns) > 1)


def test_a_row_without_a_case_ends_the_run_and_says_what_to_prepare(imported):
    environment = make_environment(FOLDER, settings_of(imported, "en"))
    try:
        with pytest.raises(ValueError, match=r"extra_info.case_id is not set: agent.toolset = deepplanning-en"):
            environment.tools({CASE_ID: None})
    finally:
        environment.close()
