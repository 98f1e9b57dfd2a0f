"""Programs, lists and folders that a spec names by a path."""

import pytest

from opd.experiment import parse_tree
from opd.inputs import Inputs, place_problems


@pytest.mark.parametrize("path", ["my.scorers", "agent://database", "s3://bucket/db"])
def test_what_is_no_path_on_this_machine_is_left_to_others(path):
    assert list(place_problems([("reward.path", path)])) == []


@pytest.mark.parametrize("path", ["scorer.py", "lib/scorer", "/databases/none", "tools.yaml"])
def test_what_is_not_there_is_called_that(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [problem] = place_problems([("reward.path", path)])
    assert (problem.path, problem.value) == ("reward.path", path)
    assert f"there is no such file or folder (looked from {tmp_path})" in problem.rule


def test_a_spec_names_its_scorer_and_what_its_tools_read():
    spec = {"kind": "opd-agent", "model": {"path": "m"}, "teacher": {"path": "t"},
            "agent": {"database_dir": "/db", "toolset": "tools.py"}}  # fmt: skip
    assert Inputs.of(parse_tree(spec).spec).places == [("agent.database_dir", "/db"), ("agent.toolset", "tools.py")]
    without = {**spec, "agent": {"database_dir": "/db", "enable_tools": False}}
    assert Inputs.of(parse_tree(without).spec).places == []
    scored = {"kind": "grpo", "model": {"path": "m"}, "reward": {"function": "custom", "path": "score.py"}}
    assert Inputs.of(parse_tree(scored).spec).places == [("reward.path", "score.py")]
