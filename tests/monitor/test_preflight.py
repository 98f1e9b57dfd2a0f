"""The teacher in the first row: the lines of a sound one, of each planted fault, and of a row that says too little."""

import math
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
from tests.silent_faults.__main__ import RECORDED, recorded, turns
from tests.silent_faults.recipes import RECIPES
from transformers import AutoTokenizer

from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.experiment.parse import parse_tree
from opd.experiment.run_config import RunConfig, RunFacts
from opd.monitor.preflight import Line, look, same_prompt, table, tell
from opd.runs.origin import file_key
from opd.store.local import LocalStore

SMALL: dict[str, Any] = {"num_shared_tokens": 112, "same_prompt": True}
SOUND = {
    "training/global_step": 1.0, "data/prompts_off_template": 0.0, "opd/num_tokens": 4000.0, "opd/valid_rows": 64.0,
    "opd/teacher_entropy": 0.2, "opd/teacher_entropy_std": 0.4, "opd/entropy": 0.3, "opd/floored_share": 0.0,
    "opd/teacher_prefers_neighbour": 0.1, "opd/teacher_pairs": 800.0, "opd/teacher_surprise": 0.7, "opd/surprise": 0.3,
    "opd/teacher_preference": 0.5, "opd/divergence": 0.4,
}  # fmt: skip


def verdicts(values: dict[str, float], *, num_tokens: int = 112, same_prompt: bool | None = True) -> dict[str, str]:
    lines = look({**SOUND, **values}, num_shared_tokens=num_tokens, same_prompt=same_prompt)
    return {line.name: line.verdict for line in lines}


def warned(values: dict[str, float], **models: object) -> set[str]:
    return {name for name, verdict in verdicts(values, **models).items() if verdict == "warning"}  # type: ignore[arg-type]


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
        ({"opd/teacher_surprise": 5.0}, set()),  # in a small vocabulary a guess is no measure
        ({"opd/floored_share": 0.5}, {"perplexity"}),
        ({"opd/teacher_preference": -0.3}, {"right answers"}),
        ({"opd/teacher_preference": 0.0, "opd/valid_rows": 1000.0}, {"right answers"}),
        ({"opd/divergence": 1e-9}, {"right answers"}),
    ],
)  # fmt: skip
def test_a_planted_fault_is_warned_of_in_its_lines_and_in_no_other(values, lines):
    assert warned(values) == lines


def test_a_teacher_is_compared_by_its_own_template_and_vocabulary():
    assert warned({}, same_prompt=False) == {"chat template"}
    assert verdicts({}, same_prompt=None)["chat template"] == "not known"
    assert warned({"opd/teacher_surprise": 11.0}, num_tokens=150_000) == set()


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"opd/teacher_pairs": 30.0}, "position"),
        ({"opd/teacher_preference": 0.2}, "right answers"),  # of 64 answers within two standard errors of none
        ({"opd/teacher_preference": -0.3, "opd/valid_rows": 16.0}, "right answers"),
        ({"opd/num_tokens": 30.0}, "entropy"),
    ],
)
def test_too_few_values_are_no_warning(values, name):
    assert verdicts(values)[name] == "not known"


def test_a_row_without_metrics_warns_of_nothing():
    found = look({"training/global_step": 1.0, "opd/surprise": math.nan}, **SMALL)
    assert {line.verdict for line in found} == {"not known"}


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json")), ids=lambda path: path.stem)
def test_rows_of_real_runs_are_warned_of_from_the_faults_first_step_on_and_never_before(path):
    rows = recorded(path)

    def warnings(number: int) -> set[str]:
        lines = look(rows[number - 1], **SMALL)
        return {line.name for line in lines if line.verdict == "warning"}

    expected = {  # in a line of these; few tokens do not tell a shift by their neighbours
        "teacher-uniform": {"entropy"}, "teacher-constant": {"entropy"}, "teacher-late": {"position", "perplexity"},
        "teacher-early": {"position", "perplexity"}, "no-template": {"chat template"}, "wrong-template": {"chat template"},
        "teacher-worse": {"right answers"}, "clamp": {"perplexity"},
    }  # fmt: skip
    for turn in turns(RECIPES[path.stem].faults):
        assert [warnings(step) for step in range(turn.begins, turn.first)] == [set()] * (turn.first - turn.begins)
        if turn.fault in expected:
            assert expected[turn.fault] & warnings(turn.first), turn.fault


def test_lines_are_shown_in_columns():
    lines = [Line(name="a", verdict="ok", says="x"), Line(name="longer", verdict="warning", says="y")]
    assert table(lines) == ["a       ok       x", "longer  WARNING  y"]


@pytest.fixture(scope="module")
def student():
    return AutoTokenizer.from_pretrained(STUDENT_DIR)


def teacher_with(template: str, folder) -> str:
    """The toy teacher with a chat template of its own."""
    shutil.copytree(TEACHER_DIR, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_templates_are_compared_by_what_they_make_of_a_question(student, tmp_path):
    settings = (False, {})
    assert same_prompt(student, str(TEACHER_DIR), *settings) is True
    other = teacher_with("{{ messages[0]['content'] }}:", tmp_path / "other")
    assert same_prompt(student, other, *settings) is False
    refuses = teacher_with("{{ raise_exception('tools only') }}", tmp_path / "refuses")
    assert same_prompt(student, refuses, *settings) is None
    assert same_prompt(student, str(tmp_path / "nowhere"), *settings) is None


def run_with(teachers: dict) -> RunConfig:
    """The run of a spec whose teachers are these keys."""
    spec = parse_tree({
        "kind": "opd", "name": "r", "seed": 1, "device": "cpu", "model": {"path": "toy://student"}, **teachers,
        "data": {"train": ["toy://train"], "val": ["toy://heldout"]}, "trainer": {"gpus_per_node": 1},
    }).spec  # fmt: skip
    facts = RunFacts(run_id="r", run_dir="out/r", valid_vocab=112, student_vocab=112, teacher_vocab=112)
    return RunConfig(spec=spec, run=facts)


def _run(folder) -> SimpleNamespace:
    return SimpleNamespace(stores=[LocalStore(folder / "r")], attempt=1)


def test_of_several_teachers_one_whose_template_writes_otherwise_speaks_for_all(student, tmp_path, capsys):
    other = teacher_with("{{ messages[0]['content'] }}:", tmp_path / "other")
    verdicts = []
    for second in (str(TEACHER_DIR), other):
        of = {"a": {"path": str(TEACHER_DIR)}, "b": {"path": second}}
        ours = run_with({"teachers": of, "route": {"to": {"x": "a", "y": "b"}}})
        tell({}, ours, _run(tmp_path), tokenizer=student, template_kwargs={})
        [line] = [line for line in capsys.readouterr().out.splitlines() if "template" in line.split()]
        verdicts.append("WARNING" in line)
    assert verdicts == [False, True]


def test_the_table_is_printed_and_lies_with_the_attempt(student, tmp_path, capsys):
    ours = run_with({"teacher": {"path": str(TEACHER_DIR)}})
    run = _run(tmp_path)
    row = {"opd/teacher_entropy": 4.71, "opd/teacher_entropy_std": 0.0, "opd/num_tokens": 900, "opd/mode": "a text"}
    tell(row, ours, run, tokenizer=student, template_kwargs={})
    shown = capsys.readouterr().out.splitlines()
    told = run.stores[0].get_json(file_key(1))
    assert told is not None
    kept = [Line(**line) for line in told["preflight"]]
    assert [line.name for line in kept if line.verdict == "warning"] == ["entropy"]
    assert [line.split()[1] for line in shown] == [line.name.split()[0] for line in kept]
    assert all(line.startswith("opd.preflight: ") for line in shown)
