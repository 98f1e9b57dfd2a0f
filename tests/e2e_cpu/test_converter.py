"""Reports that the parser cannot read, converted in a whole evaluation: the spec's endpoint, its key, the numbers, what is kept."""

from __future__ import annotations

import json

import pytest
from tests.e2e_cpu.runs import TIMEOUT_S, finish, start
from tests.e2e_cpu.test_agent import SCRIPT
from tests.envs.deepplanning.chat_server import KEY, MODEL, completion, serving
from tests.gpu_smoke import planner

from opd.agent.trajectories import file_key, from_lines
from opd.config.verl.hydra_text import hydra_value
from opd.data.prepare_agent_data import TRAIN_FILE
from opd.envs.deepplanning.scoring.endpoint import API_KEY_VARIABLE
from opd.envs.deepplanning.scoring.report import read_report
from opd.evaluation.samples import GENERATIONS_KEY, read_generations

CASES = ("10", "42", "57", "63")


def test_an_evaluation_says_who_made_the_plans_and_keeps_what_it_paid_for(tmp_path, monkeypatch):
    world = planner.write_world(tmp_path, cases=CASES, languages=("en",))
    report = planner.report("en", 3042)
    rows = world / planner.ROWS / TRAIN_FILE
    sets = {
        "agent.database_dir": world / planner.DATABASE, "agent.toolset": "opd.envs.deepplanning.en",
        "data.val": f"[{rows}]", "data.max_prompt_length": 1600, "data.max_response_length": 1800,
        "data.max_val_samples": 3, "reward.converter.model": MODEL, "agent.max_tool_response_length": 600,
        "rollout.val.num_samples": 1,
    }  # fmt: skip
    unreadable = report.replace(" | ", " then ")
    turns = [planner.call("en"), unreadable]
    monkeypatch.setenv(API_KEY_VARIABLE, KEY)
    plan = read_report(report.removeprefix("<plan>").removesuffix("</plan>"), ())
    with serving(completion(json.dumps(plan)), key=KEY) as server:
        sets["reward.converter.url"] = server.url
        words = [f"{key}={value}" for key, value in sets.items()]
        process = start(tmp_path, "opd-agent-eval", *words, raw=[f"{SCRIPT}.assistant={hydra_value(turns)}"])
        outcome = finish(process, tmp_path, "opd-agent-eval", timeout_s=2 * TIMEOUT_S).must_be_clean()
    found = outcome.result["eval"]["deepplanning_travel_en"]
    # One plan for three cases: right for one, against the others' prices it breaks one rule of one of eight dimensions.
    assert (found["num_problems"], found["mean"]) == (3, pytest.approx(1 / 3))
    assert found["reward"]["mean"] == pytest.approx((1 + 2 * (1 - 1 / 16)) / 3)
    # Of one answer in three all dimensions hold, of the two others seven of eight.
    numbers = found["numbers"]
    means = {name: (value["mean"], value["num_answers"]) for name, value in numbers.items()}
    assert means["plan_by_endpoint"] == means["delivery_rate"] == (1.0, 3)
    assert means["case_acc"] == (pytest.approx(1 / 3), 3)
    assert means["commonsense_score"] == (pytest.approx((1 + 2 * 7 / 8) / 3), 3)
    assert means["composite_score"] == (pytest.approx(found["reward"]["mean"]), 3)
    row = next(row for row in outcome.rows if "val-core/deepplanning_travel_en/acc/mean@1" in row)
    assert {name: row[f"val-aux/deepplanning_travel_en/{name}/mean@1"] for name in means} == {
        name: mean for name, (mean, _) in means.items()
    }
    stored = read_generations(outcome.run_dir / GENERATIONS_KEY)
    assert [sample.numbers["plan_by_endpoint"] for sample in stored] == [1.0] * 3
    assert "plan_by_endpoint mean@n" in outcome.output
    items = from_lines((outcome.run_dir / file_key("validation", 0)).read_bytes())
    assert [item.breakdown["plan_by_endpoint"] for item in items] == [1.0] * 3
    kept = list((outcome.run_dir.parent / "store" / outcome.run_dir.name / "conversions").glob("*.json"))
    assert len(kept) == 1, "all conversations tell the one report"
    assert 1 <= len(server.requests) <= 3
    assert all(KEY not in path.read_text(errors="replace") for path in outcome.run_dir.rglob("*") if path.is_file())
    assert KEY not in outcome.output
