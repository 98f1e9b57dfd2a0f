"""Promises that a real GRPO run and a real run of an agent with tools keep."""

import pytest
from tests.promises import runs
from tests.promises.runs import AGENT, PROMPTS, SAMPLES, Left, finish, start

pytestmark = [pytest.mark.run, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def grpo(tmp_path_factory: pytest.TempPathFactory) -> Left:
    folder = tmp_path_factory.mktemp("grpo")
    return finish(folder, "grpo", start(folder, "grpo", {"MODEL_PATH": "toy://student"}))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Left:
    folder = tmp_path_factory.mktemp("agent")
    return finish(folder, "agent", start(folder, "agent", AGENT))


@pytest.mark.parametrize("name", ["grpo", "agent"])
def test_a_run_ends_with_exit_code_0_and_a_result_and_no_traceback(name, request):
    runs.must_end_well(request.getfixturevalue(name))


@pytest.mark.parametrize("name", ["grpo", "agent"])
def test_the_log_has_one_readable_line_a_step(name, request):
    runs.must_log_each_step(request.getfixturevalue(name))


@pytest.mark.parametrize("name", ["grpo", "agent"])
def test_metrics_are_one_json_object_a_step(name, request):
    runs.must_leave_a_row_a_step(request.getfixturevalue(name))


@pytest.mark.parametrize("name", ["grpo", "agent"])
def test_a_checkpoint_is_sealed_after_all_of_its_files(name, request):
    runs.must_seal_its_checkpoint(request.getfixturevalue(name))


def test_grpo_trains_by_verls_loss_without_a_teacher(grpo):
    for row in grpo.steps:
        assert row["rollout/trajectories"] == PROMPTS * SAMPLES
        assert {"actor/pg_loss", "actor/grad_norm", "actor/pg_clipfrac"} <= row.keys()
        assert "actor/kl_loss" not in row, "the main recipe has no KL term"
        assert not [name for name in row if name.startswith("opd/")]


def test_conversations_with_tools_log_tool_masks_and_turns(agent):
    for row in agent.steps:
        model, tool = row["tool_mask/llm_tokens"], row["tool_mask/tool_tokens"]
        assert model > 0
        assert tool > 0, "the tools answered"
        assert row["tool_mask/tool_ratio"] == pytest.approx(tool / (model + tool))
        assert 2 < row["num_turns/max"] <= 1 + 2 * 3
        assert 2 <= row["num_turns/min"] <= row["num_turns/mean"] <= row["num_turns/max"]


def test_distillation_trains_on_the_models_tokens_and_on_no_tool_token(agent):
    for row in agent.steps:
        assert row["opd/num_tokens"] == row["tool_mask/llm_tokens"]
        assert row["opd/loss"] > 0
