"""What the planners of the smoke run are taught: right plans keep every rule of the benchmark, guessed prices break one."""

import pyarrow.parquet as pq
import pytest
from tests.gpu_smoke import planner
from tests.gpu_smoke.promises import planner_promises
from tests.gpu_smoke.smoke import SPECS

from opd.config import load_spec
from opd_envs.deepplanning.parts import TOOLSETS
from opd_envs.deepplanning.reward import compute_score
from opd_envs.preparing import TRAIN_FILE, val_file


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return planner.write_world(tmp_path_factory.mktemp("world"), cases=["10", "42", "57", "63", "89"])


@pytest.fixture(scope="module")
def taught(world):
    rows = pq.read_table(world / planner.ROWS / TRAIN_FILE).to_pylist()
    tokenizer = planner.make_tokenizer(rows)
    return rows, tokenizer, planner.make_lessons(world, rows, tokenizer)


def score(world, row, tokenizer, dialogue):
    text = tokenizer.decode(dialogue.response_ids, skip_special_tokens=True)
    return compute_score(
        row["data_source"], text, row["reward_model"]["ground_truth"], row["extra_info"],
        database_dir=str(world / planner.DATABASE),
    )  # fmt: skip


def test_both_languages_are_trained_on_and_validated(world, taught):
    rows, _, _ = taught
    assert {planner.language_of(row) for row in rows} == {"en", "zh"}
    assert all((world / planner.ROWS / val_file(language)).exists() for language in ("en", "zh"))


def test_a_right_lesson_calls_the_benchmarks_tool_and_its_plan_keeps_every_rule(world, taught):
    rows, tokenizer, (right, _) = taught
    for row, lesson in zip(rows, right, strict=True):
        (found,) = [record for turn in lesson.turns for record in turn.calls]
        assert (found.name, found.error, found.truncated) == ("query_hotel_info", False, False)
        judged = score(world, row, tokenizer, lesson)
        assert {name for name, value in judged.items() if value != 1.0} == {"pred"}


def test_a_guess_breaks_the_rule_on_the_price_and_no_other(world, taught):
    rows, tokenizer, (_, wrong) = taught
    judged = [score(world, row, tokenizer, lesson) for row, lesson in zip(rows, wrong, strict=True)]
    rules = {name for one in judged for name, value in one.items() if name.startswith("commonsense_") and value == 0.0}
    assert rules == {"commonsense_validated_accommodation"}
    assert not any(one["acc"] for one in judged)


def test_lessons_fit_the_runs_limits(taught):
    _, _, (right, wrong) = taught
    for lesson in (*right, *wrong):
        assert lesson.ending == "answered"
        assert len(lesson.prompt_ids) <= planner.MAX_PROMPT_TOKENS
        assert len(lesson.response_ids) <= planner.MAX_RESPONSE_TOKENS


def test_the_spec_has_the_limits_of_the_lessons():
    spec = load_spec(str(SPECS["deepplanning"]), env={}, sets=[], overrides=[]).spec
    lengths = spec.data.max_prompt_length, spec.data.max_response_length, spec.agent.max_tool_response_length
    assert lengths == (planner.MAX_PROMPT_TOKENS, planner.MAX_RESPONSE_TOKENS, planner.MAX_REPLY_TOKENS)
    assert (spec.agent.max_assistant_turns, spec.agent.toolset) == (planner.MAX_TURNS, TOOLSETS["en"])


def broken(world, taught, **changed: float) -> set[str]:
    """The broken promises of a run of two steps whose validation scored the right lessons."""
    rows, tokenizer, (right, _) = taught
    validation = {}
    for row, lesson in zip(rows, right, strict=True):
        for name, value in score(world, row, tokenizer, lesson).items():
            validation[f"val-aux/{row['data_source']}/{name}/mean@1"] = value
    step = {
        "training/global_step": 1.0,
        "agent/tool/query_hotel_info/calls": 5.0,
        "agent/tool/query_hotel_info/errors": 1.0,
    }
    return {promise.name for promise in planner_promises([step, step | {
        name.replace("__", "/"): value for name, value in changed.items()
    }, validation]) if not promise.kept}  # fmt: skip


def test_a_run_that_has_the_benchmarks_numbers_keeps_its_promises(world, taught):
    assert broken(world, taught) == set()


def test_a_step_whose_calls_all_failed_breaks_the_promise(world, taught):
    assert len(broken(world, taught, agent__tool__query_hotel_info__errors=5.0)) == 1
