"""DeepPlanning's shopping end to end on its published layout: import, rows, carts filled over turns, scores, every token's mask."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from tests.e2e_cpu import probe
from tests.e2e_cpu.masks import Masks
from tests.e2e_cpu.runs import ROOT, finish, start
from tests.e2e_cpu.test_agent import SCRIPT, call, rollouts, trajectories
from tests.opd_envs.deepplanning import shop
from tests.opd_envs.deepplanning.published import write_data
from transformers import AutoTokenizer

from opd.agent.environments import tool_schemas
from opd.config.verl import hydra_value
from opd_envs.deepplanning.__main__ import main as import_main
from opd_envs.deepplanning.parts import LEVELS
from opd_envs.deepplanning.prepare import main as prepare
from opd_envs.travel.toy import STUDENT, model_folder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]
TOOLSET = "deepplanning-shopping-en"
BOOTS, SHIRT, BAG = (call("add_product_to_cart", product_id=number) for number in ("b1", "c1", "d1"))
COUPON = call("add_coupon_to_cart", coupon_name=shop.STORE_30)
DONE = "The cart is filled."
SCRIPTED = {
    "order_1_0": [call("search_products", query="marsh boots"), BOOTS, SHIRT, call("get_cart_info"), DONE],
    "order_1_1": [BOOTS + SHIRT, DONE],  # two calls in one turn, in their order
    "order_2_0": [BOOTS, SHIRT, BAG, DONE],
    "order_2_1": [BOOTS],  # until the turns are spent, and the stock before them
    "order_3_0": [BOOTS, SHIRT, COUPON, DONE],
    "order_3_1": [COUPON, BOOTS, SHIRT, DONE],  # the coupon comes before the cart is worth it
}
MAX_TURNS = 6


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shopping")
    data, database = write_data(folder / "data", languages=[], levels=LEVELS), folder / "database"
    assert import_main(["import", "--data-dir", str(data), "--out", str(database)]) == 0
    prepare(["--data-dir", str(data), "--database-dir", str(database)])
    rows = data / "agent_processed" / "val_shopping.parquet"
    sets = {
        "agent.database_dir": database, "agent.toolset": TOOLSET, "agent.max_assistant_turns": MAX_TURNS,
        "agent.max_parallel_calls": 2, "agent.max_tool_response_length": 1200, "agent.call_timeout_s": 60,
        "data.train": f"[{rows}]", "data.val": f"[{rows}]", "data.train_batch_size": len(SCRIPTED),
        "data.max_prompt_length": 1600, "data.max_response_length": 2400, "actor.ppo_mini_batch_size": len(SCRIPTED),
        "actor.ppo_micro_batch_size_per_gpu": 2, "trainer.total_steps": 1,
    }  # fmt: skip
    raw = [f"{SCRIPT}.{key}={hydra_value(turns)}" for key, turns in SCRIPTED.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(probe.FOLDER, str(folder))
        patch.setenv("VERL_USE_EXTERNAL_MODULES", probe.__name__)
        patch.setenv("PYTHONPATH", str(ROOT))
        process = start(folder, "opd-agent", *(f"{key}={value}" for key, value in sets.items()), raw=raw)
        return finish(process, folder, "opd-agent", timeout_s=480).must_be_clean()


@pytest.fixture(scope="module")
def items(outcome):
    found = {}
    for item in trajectories(outcome, 1):
        found[next(key for key in SCRIPTED if key in item.prompt)] = item
    assert len(found) == len(SCRIPTED)
    return found


def test_masks_are_the_transcripts_token_by_token(outcome, items):
    rows = pq.read_table(outcome.run_dir.parents[1] / "data" / "agent_processed" / "val_shopping.parquet").to_pylist()
    masks = Masks(AutoTokenizer.from_pretrained(model_folder(STUDENT)), rollouts(outcome))
    for key, script in SCRIPTED.items():
        (prompt,) = (row["prompt"] for row in rows if key in row["prompt"][1]["content"])
        masks.check(prompt, script, items[key], tool_schemas(TOOLSET))


def test_each_conversation_fills_a_cart_of_its_own_which_is_scored(items):
    # Two of two expected at levels 1 and 2, three with the coupon at level 3.
    assert {key: item.score for key, item in items.items()} == {
        "order_1_0": 1.0,
        "order_1_1": 1.0,
        "order_2_0": 2 / 3,  # the bag is too much
        "order_2_1": pytest.approx(1 / 4),  # three pairs in stock: one of two, two pairs too much
        "order_3_0": 1.0,
        "order_3_1": pytest.approx(2 / 3),  # without the coupon
    }
    assert {key: item.breakdown["case_score"] for key, item in items.items()} == {
        "order_1_0": 1.0, "order_1_1": 1.0, "order_2_0": 1.0, "order_2_1": 0.0, "order_3_0": 1.0, "order_3_1": 0.0
    }  # fmt: skip
    assert [key for key, item in items.items() if item.breakdown["incomplete"]] == ["order_2_1"]


def test_what_the_tools_refused_is_an_answer_and_counted(outcome, items):
    refused = items["order_3_1"].calls[0][0]
    assert json.loads(refused["reply"])["message"] == "the cart costs 0, all coupons in it together ask for 300"
    (row,) = outcome.steps
    assert row["agent/tool/add_coupon_to_cart/calls"] == 2
    assert row["agent/tool/add_coupon_to_cart/errors"] == 1
    assert row["agent/tool/search_products/errors"] == row["agent/surplus_calls"] == row["rollout/failed"] == 0
    assert json.loads(items["order_1_0"].calls[3][0]["reply"])["summary"] == {
        "total_items_count": 2, "total_price": 480.25
    }  # fmt: skip


def test_the_validation_tells_the_benchmarks_numbers(outcome):
    row = outcome.rows[0]
    source = "deepplanning_shopping"
    assert row[f"val-core/{source}/acc/mean@1"] == pytest.approx(4 / 6)
    matched, expected = (row[f"val-aux/{source}/{name}/mean@1"] for name in ("matched_count", "expected_count"))
    assert (6 * matched, 6 * expected) == pytest.approx((12, 14))
