"""The teacher looked at in the first row: what a sound one shows, what each planted fault does, and what a row cannot tell."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
from tests.silent_faults.__main__ import RECORDED, recorded, turns
from tests.silent_faults.recipes import RECIPES

from opd.monitor.preflight import Line, Models, look, table

MODELS = Models(shared=112, student=112, teacher=112, max_unshared_mass=0.05, same_prompt=True)
SOUND = {
    "training/global_step": 1.0, "data/prompts_off_template": 0.0, "opd/num_tokens": 4000.0, "opd/valid_rows": 64.0,
    "opd/teacher_entropy": 0.2, "opd/teacher_entropy_std": 0.4, "opd/entropy": 0.3, "opd/floored_share": 0.0,
    "opd/teacher_prefers_neighbour": 0.1, "opd/teacher_pairs": 800.0, "opd/teacher_surprise": 0.7, "opd/surprise": 0.3,
    "opd/teacher_preference": 0.5, "opd/divergence": 0.4,
}  # fmt: skip


def verdicts(values: dict[str, float], models: Models = MODELS) -> dict[str, str]:
    return {line.name: line.verdict for line in look({**SOUND, **values}, models)}


def warned(values: dict[str, float], models: Models = MODELS) -> set[str]:
    return {name for name, verdict in verdicts(values, models).items() if verdict == "warning"}


def test_a_sound_teacher_is_ok_in_every_line():
    assert set(verdicts({}).values()) == {"ok"}


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({"opd/teacher_entropy": math.log(112), "opd/teacher_entropy_std": 1e-6}, {"entropy", "right answers"}),
        ({"opd/teacher_entropy": 0.95 * math.log(112)}, {"entropy", "right answers"}),  # an untrained one
        ({"opd/teacher_entropy": 0.5, "opd/teacher_entropy_std": 1e-6, "opd/teacher_surprise": 10.0}, {"entropy", "perplexity"}),
        ({"opd/teacher_prefers_neighbour": 0.9}, {"position"}),
        ({"data/prompts_off_template": 1.0}, {"chat template"}),
        ({"opd/teacher_surprise": 7.1}, {"perplexity"}),
        ({"opd/floored_share": 0.5}, {"perplexity"}),
        ({"opd/teacher_preference": -0.3}, {"right answers"}),
        ({"opd/teacher_preference": 0.0, "opd/valid_rows": 1000.0}, {"right answers"}),
        ({"opd/divergence": 1e-9}, {"right answers"}),
    ],
)  # fmt: skip
def test_a_planted_fault_is_warned_of_in_its_lines_and_in_no_other(values, lines):
    assert warned(values) == lines


def test_a_teacher_whose_template_writes_otherwise_is_warned_of_and_one_that_was_not_compared_is_not():
    assert warned({}, replace(MODELS, same_prompt=False)) == {"chat template"}
    assert verdicts({}, replace(MODELS, same_prompt=None))["chat template"] == "not known"


def test_what_one_model_says_with_tokens_that_the_other_lacks_is_told():
    more = replace(MODELS, teacher=115)
    told = {line.name: line for line in look({**SOUND, "opd/unshared_mass_teacher": 0.012}, more)}["tokenizer"]
    assert told == Line(
        name="tokenizer", verdict="ok", says="112 tokens in both; the teacher has 3 more and puts 0.012 of its probability on them"
    )  # fmt: skip
    assert warned({"opd/unshared_mass_teacher": 0.06}, more) == {"tokenizer"}
    assert verdicts({}, more)["tokenizer"] == "not known"


def test_a_vocabulary_that_is_small_makes_a_guess_no_measure():
    assert warned({"opd/teacher_surprise": 5.0}) == set()
    assert (
        warned({"opd/teacher_surprise": 11.0}, replace(MODELS, shared=150_000, student=150_000, teacher=150_000))
        == set()
    )


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"opd/teacher_pairs": 30.0}, "position"),
        ({"opd/teacher_preference": 0.2}, "right answers"),  # of 64 answers within two standard errors of none
        ({"opd/teacher_preference": -0.3, "opd/valid_rows": 16.0}, "right answers"),
        ({"opd/num_tokens": 30.0}, "entropy"),
    ],
)
def test_too_little_to_tell_is_no_warning(values, name):
    assert verdicts(values)[name] == "not known"


def test_a_row_that_lacks_what_was_not_measured_warns_of_nothing():
    found = look({"training/global_step": 1.0, "opd/surprise": math.nan}, MODELS)
    assert {line.name: line.verdict for line in found} == {
        "tokenizer": "ok", "chat template": "not known", "entropy": "not known", "position": "not known",
        "perplexity": "not known", "right answers": "not known",
    }  # fmt: skip
    assert warned({"opd/teacher_surprise": 1e5}) == {"perplexity"}, "no float holds its exponential"


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json")), ids=lambda path: path.stem)
def test_rows_of_real_runs_are_warned_of_from_the_faults_first_step_on_and_never_before(path):
    rows = recorded(path)

    def warnings(number: int) -> set[str]:
        return {line.name for line in look(rows[number - 1], MODELS) if line.verdict == "warning"}

    expected = {  # in a line of these; few tokens do not tell a shift by their neighbours
        "teacher-uniform": {"entropy"}, "teacher-constant": {"entropy"}, "teacher-late": {"position", "perplexity"},
        "teacher-early": {"position", "perplexity"}, "no-template": {"chat template"}, "wrong-template": {"chat template"},
        "teacher-worse": {"right answers"}, "clamp": {"perplexity"},
    }  # fmt: skip
    for turn in turns(RECIPES[path.stem].faults):
        assert [warnings(step) for step in range(turn.begins, turn.first)] == [set()] * (turn.first - turn.begins)
        if turn.fault in expected:
            assert expected[turn.fault] & warnings(turn.first), turn.fault


def test_lines_are_read_back_as_they_were_written_and_nothing_else_is():
    lines = look(SOUND, MODELS)
    assert Line.read([asdict(line) for line in lines]) == lines
    for told in (None, "text", {"verdict": "ok"}, [1, {"name": "a"}, {"verdict": ["ok"]}]):
        assert Line.read(told) == []


def test_a_table_has_a_line_each_with_columns_that_begin_alike():
    shown = table([Line(name="a", verdict="ok", says="x"), Line(name="longer", verdict="warning", says="y")])
    assert shown == ["a       ok       x", "longer  WARNING  y"]
