"""Environments by name: registered, a module's, a file's; the check rejects a run whose environment is missing or unscored."""

import asyncio
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from tests.agent import book
from tests.minimal import MINIMAL
from tests.scoring import compute_score

from opd.agent import load_environment
from opd.agent.environments import DEFAULT_TOOLSET, NoEnvironment, source_of
from opd.agent.tool_pool import ToolPool
from opd.experiment import parse_tree
from opd.inputs import environment_problems

GUIDE = Path(__file__).parents[2] / "docs/howto/tools.md"
RECORD = "from tests.agent.book import ENVIRONMENT as BOOK, LOOK_UP\nfrom dataclasses import replace\n"
BROKEN = {
    "absent.py": (None, "ImportError: there is no Python file"),
    "no.such.module": (None, "ModuleNotFoundError: No module named 'no'; registered are "),
    "travle": (None, "did you mean travel?"),
    "empty.py": ("", "AttributeError: module .* has no attribute 'ENVIRONMENT'"),
    "raises.py": ("1 / 0", "ZeroDivisionError: division by zero"),
    "other.py": ("ENVIRONMENT = {'a': 1}", "must be an opd.agent.Environment, found dict"),
    "renamed.py": (RECORD + "ENVIRONMENT = replace(BOOK, tools={'x': LOOK_UP})", r"tools\['x'\] must be a Tool of this name"),
}  # fmt: skip


def test_an_environment_is_found_by_its_registered_name_its_module_and_its_file(tmp_path):
    (tmp_path / "mine.py").write_text(RECORD + "MINE = BOOK\n")
    for name in ("tests.agent.book", "tests.agent.book:ENVIRONMENT", f"{tmp_path / 'mine.py'}:MINE"):
        assert load_environment(name).tools == book.ENVIRONMENT.tools
    assert load_environment(DEFAULT_TOOLSET).reward == "opd_envs.travel.reward:compute_score"


@pytest.mark.parametrize("name", BROKEN)
def test_a_name_of_no_environment_is_one_line_that_says_why(tmp_path, name):
    code, message = BROKEN[name]
    place = str(tmp_path / name) if source_of(name) else name
    if code is not None:
        (tmp_path / name).write_text(code)
    with pytest.raises(NoEnvironment, match=message) as caught:
        load_environment(place)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"agent.toolset = {place}: ")


def refused(**sections) -> list[tuple[str, str]]:
    spec = parse_tree({**MINIMAL["opd-agent"], **sections}).spec
    return [(problem.path, problem.rule) for problem in environment_problems(spec)]


def test_a_run_is_refused_whose_environment_is_missing_or_has_no_reward(tmp_path):
    (tmp_path / "bare.py").write_text(RECORD + "ENVIRONMENT = replace(BOOK, reward='')\n")
    bare = {"database_dir": "/d", "toolset": str(tmp_path / "bare.py")}
    assert refused() == []
    assert refused(agent={"database_dir": "/d", "toolset": "tests.agent.book"}) == []
    assert refused(agent=bare) == [("reward.function", f"agent.toolset = {bare['toolset']} has no reward of its own")]
    assert refused(agent=bare, reward={"function": "exact_match"}) == []
    ((path, rule),) = refused(agent={"database_dir": "/d", "toolset": "travle"})
    assert (path, "did you mean travel?" in rule) == ("agent.toolset", True)
    own = {"database_dir": "/d", "tool_config_path": "tools.yaml"}
    assert refused(agent=own) == [("reward.function", "tools of agent.tool_config_path have no reward")]
    program = {"program": "tests.agent.asking:ask"}
    assert refused(agent=program) == [("reward.function", "agent.program has no reward of its own")]
    assert refused(agent=program | {"database_dir": "/d", "toolset": "tests.agent.book"}) == []
    ((path, rule),) = refused(agent={"program": "tests.agent.asking:asks"}, reward={"function": "exact_match"})
    assert (path, "has no attribute 'asks'" in rule) == ("agent.program", True)


def ask(folder, toolset: str, tool: str, **arguments):
    async def call():
        with closing(ToolPool(folder, num_processes=1, timeout_s=60, toolset=toolset)) as pool:
            return await pool.call(tool, arguments), await pool.call(tool, dict.fromkeys(arguments, "Nobody"))

    return asyncio.run(call())


def scores(toolset: str, truth: str) -> list[float]:
    options = {"function": "opd.agent.environments:compute_score", "timeout_s": 60, "toolset": toolset}
    return [compute_score("x", f"It is {text}.", truth, **options)["score"] for text in (truth, "none")]


def test_the_guides_key_value_world_is_written_answered_scored_and_accepted(tmp_path):
    code, spec, *_ = re.findall(r"```(?:python|yaml)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 60
    (tmp_path / "kv.py").write_text(code)
    subprocess.run([sys.executable, tmp_path / "kv.py", tmp_path / "kv"], check=True)
    toolset = str(tmp_path / "kv.py")
    rows = pq.read_table(tmp_path / "kv" / "train.parquet").to_pylist()
    found, missing = ask(tmp_path / "kv", toolset, "look_up", key=rows[0]["extra_info"]["problem_id"])
    assert rows[0]["reward_model"]["ground_truth"] in found.text
    assert missing.error == "bad_arguments"
    assert scores(toolset, rows[0]["reward_model"]["ground_truth"]) == [1.0, 0.0]
    tree = yaml.safe_load(spec)
    assert refused(**tree | {"agent": tree["agent"] | {"toolset": toolset}}) == []
