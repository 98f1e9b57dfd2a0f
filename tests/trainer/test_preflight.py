"""The preflight next to the trainer: templates by their tokens, and the place of the table."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.experiment.parse import parse_tree
from opd.experiment.run_config import RunConfig, RunFacts
from opd.monitor.preflight import Line
from opd.runs.origin import file_key
from opd.store.local import LocalStore
from opd.trainer.preflight import same_prompt, tell


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
    return SimpleNamespace(stores=[LocalStore(folder / "r")], handle=SimpleNamespace(attempt=1))


def _data(tokenizer) -> SimpleNamespace:
    return SimpleNamespace(tokenizer=tokenizer, template_kwargs={})


def test_of_several_teachers_one_whose_template_writes_otherwise_speaks_for_all(student, tmp_path, capsys):
    other = teacher_with("{{ messages[0]['content'] }}:", tmp_path / "other")
    verdicts = []
    for second in (str(TEACHER_DIR), other):
        of = {"a": {"path": str(TEACHER_DIR)}, "b": {"path": second}}
        ours = run_with({"teachers": of, "route": {"to": {"x": "a", "y": "b"}}})
        tell({}, ours, run=_run(tmp_path), data=_data(student))
        [line] = [line for line in capsys.readouterr().out.splitlines() if "template" in line.split()]
        verdicts.append("WARNING" in line)
    assert verdicts == [False, True]


def test_the_table_is_printed_and_lies_with_the_attempt(student, tmp_path, capsys):
    ours = run_with({"teacher": {"path": str(TEACHER_DIR)}})
    run = _run(tmp_path)
    row = {"opd/teacher_entropy": 4.71, "opd/teacher_entropy_std": 0.0, "opd/num_tokens": 900, "opd/mode": "a text"}
    tell(row, ours, run=run, data=_data(student))
    shown = capsys.readouterr().out.splitlines()
    told = run.stores[0].get_json(file_key(1))
    assert told is not None
    kept = Line.read(told["preflight"])
    assert json.loads(json.dumps(told["preflight"])) == [asdict(line) for line in kept]
    assert [line.name for line in kept if line.verdict == "warning"] == ["entropy"]
    assert [line.split()[1] for line in shown] == [line.name.split()[0] for line in kept]
    assert all(line.startswith("opd.preflight: ") for line in shown)
