"""Distillation over turns with tools, end to end: scripted turns first, then the tiny student's own."""

import json
import re
from pathlib import Path

import pytest
from tests.e2e_cpu import probe
from tests.e2e_cpu.masks import Masks, read_by_the_student, records, said_by_the_rollout
from tests.e2e_cpu.runs import ROOT, TIMEOUT_S, Outcome, finish, run, start
from tests.scripted import override as scripted_by
from transformers import AutoTokenizer

from opd.agent.environments import tool_schemas
from opd.agent.trajectories import from_lines
from opd.data.rows import write_files
from opd_envs.rows import AGENT_SCHEMA
from opd_envs.travel.toy import MODELS, STUDENT, make_world, open_world, rows

TOOLSET = str(ROOT / "tests" / "agent" / "faulty_tools.py")
BATCH = 16


def call(name: str, /, **arguments) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}</tool_call>"


SCRIPTED: dict[str, list[str | None]] = {
    "probe_hang": [call("hang"), "<answer>0</answer>"],
    "probe_raise": [call("raise"), "<answer>1</answer>"],
    "probe_malformed": ['<tool_call>{"name": "get_price", </tool_call>', "<answer>2</answer>"],
    "probe_long": [call("long"), "<answer>3</answer>"],
    "probe_surplus": [call("ping") + call("ping"), "<answer>4</answer>"],
    "probe_fifty": [call("ping")],
    "probe_zh": [call("get_price", city="不存在的城市", name="明珠酒店"), "没有这座城市。<answer>无</answer>"],
    "probe_then_sample": [call("ping"), None],
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory) -> Outcome:
    folder = tmp_path_factory.mktemp("agent")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(probe.FOLDER, str(folder))
        patch.setenv("VERL_USE_EXTERNAL_MODULES", probe.__name__)
        patch.setenv("PYTHONPATH", str(ROOT))
        return scripted_run(folder)


def scripted_run(folder: Path) -> Outcome:
    database = make_world(folder / "database")
    write_files({folder / "train.parquet": tasks(database)}, {}, schema=AGENT_SCHEMA)
    sets = [f"agent.database_dir={database}", f"agent.toolset={TOOLSET}", f"data.train=[{folder / 'train.parquet'}]"]
    # The last text is in every prompt: what is not scripted is the model's.
    raw = [scripted_by(folder, SCRIPTED | {"assistant": [None]}, MODELS[STUDENT])]
    process = start(folder, "opd-agent", *sets, raw=raw)
    return finish(process, folder, "opd-agent", timeout_s=2 * TIMEOUT_S).must_be_clean()


def tasks(database: Path) -> list[dict]:
    """Two batches: the first begins with a row for each script, all else is asked in earnest."""
    table = rows(open_world(database), seed=3, split="train", num_rows=2 * BATCH)
    for row, key in zip(table, SCRIPTED, strict=False):
        row["prompt"][0]["content"] = f"{key} " + row["prompt"][0]["content"]
        row["extra_info"]["tool_selection"] = ["get_price", "hang", "raise", "long", "ping"]
    return table


def trajectories(outcome: Outcome, step: int):
    return from_lines((outcome.run_dir / "trajectories" / f"train-{step:06d}.jsonl").read_bytes())


def scripted(outcome: Outcome) -> dict:
    return dict(zip(SCRIPTED, trajectories(outcome, 1), strict=False))


def rollouts(outcome: Outcome) -> list[dict]:
    return records(outcome.run_dir.parent.parent, "rollout")


def test_masks_are_the_transcripts_token_by_token(outcome):
    schemas = {schema["function"]["name"]: schema for schema in tool_schemas(TOOLSET)}
    offered = [schema for name, schema in schemas.items() if name in ("get_price", "hang", "raise", "long", "ping")]
    masks = Masks(AutoTokenizer.from_pretrained(MODELS[STUDENT]), rollouts(outcome))
    for key, item in scripted(outcome).items():
        if None in SCRIPTED[key]:
            continue
        question = re.search(r"user\n(.*?)<\|im_end\|>", item.prompt, re.DOTALL)[1]
        assert key in question
        masks.check([{"role": "user", "content": question}], SCRIPTED[key], item, offered)


def test_the_student_trains_on_its_own_tokens_and_reads_all_of_them(outcome):
    said = said_by_the_rollout(rollouts(outcome))
    assert said == read_by_the_student(records(outcome.run_dir.parent.parent, "student"))
    assert said.total() == sum(row["opd/num_tokens"] for row in outcome.steps)
    assert said.total() == sum(row["tool_mask/llm_tokens"] for row in outcome.steps)


def test_what_tools_did_is_counted_by_tool(outcome):
    first, second = outcome.steps
    for name, text in (("hang", "gave no answer in 3 s"), ("raise", "failed")):
        assert first[f"agent/tool/{name}/calls"] == first[f"agent/tool/{name}/errors"] == 1
        assert text in scripted(outcome)[f"probe_{name}"].calls[0][0]["reply"]
        assert f"agent/tool/{name}/calls" not in second
    assert first["agent/tool/hang/seconds_max"] >= 3
    assert "not valid JSON" in scripted(outcome)["probe_malformed"].calls[0][0]["reply"]
    assert first["agent/malformed_calls"] >= 1  # the student's own answers of the step may have more
    assert first["agent/surplus_calls"] >= 1
    assert first["agent/truncated_replies"] >= 1
    assert scripted(outcome)["probe_long"].calls[0][0]["truncated"]
    assert first["rollout/failed"] == second["rollout/failed"] == 0


def test_fifty_turns_end_as_fifty(outcome):
    item, first = scripted(outcome)["probe_fifty"], outcome.steps[0]
    assert item.ending == "max_assistant_turns"
    assert len(item.calls) == 50
    assert first["num_turns/max"] == first["opd/num_turns/max"] == 1 + 50 + 49
    assert first["agent/ended/max_assistant_turns"] >= 1


def test_chinese_text_survives_the_round_trip(outcome):
    item = scripted(outcome)["probe_zh"]
    assert item.segments[-1].text == "没有这座城市。<answer>无</answer><|im_end|>"
    assert item.calls[0][0]["arguments"] == {"city": "不存在的城市", "name": "明珠酒店"}
    assert "不存在的城市" in item.calls[0][0]["reply"]


def test_after_the_script_the_model_speaks(outcome):
    item = scripted(outcome)["probe_then_sample"]
    assert [segment.trained for segment in item.segments[:3]] == [True, False, True]
    assert trajectories(outcome, 2), "a second batch without any script"
    assert all(row["training/rollout_probs_diff_max"] < 1e-5 for row in outcome.steps)


PROGRAM = f"agent.program={Path(TOOLSET).with_name('asking.py')}:ask"


@pytest.mark.parametrize(
    ("kind", "sets"), [("grpo", ()), ("grpo", (PROGRAM, "reward.function=exact_match")), ("eval", ())]
)
def test_reinforcement_learning_and_evaluation_use_the_same_environment(tmp_path, kind, sets):
    spec = "opd-agent-" + kind
    result = run(tmp_path, spec, *sets).must_be_clean()
    row = result.rows[0]
    assert row.get("training/rollout_probs_diff_max", 0) < 1e-5
    prefix = "" if "agent/tool/get_price/calls" in row else "val-aux/"
    assert row[f"{prefix}agent/tool/get_price/calls"] > 0
    assert row[f"{prefix}tool_mask/tool_tokens"] > 0
    if kind == "eval":
        found = result.result["eval"]
        assert {name: each["num_problems"] for name, each in found.items()} == {"travel_en": 11, "travel_zh": 5}
        assert all(0 <= each["means"]["acc/mean"] <= 1 for each in found.values())
