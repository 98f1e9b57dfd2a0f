"""verl and Ray still write the lines that are silenced, and a silenced module writes none."""

import importlib.util
import logging
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from opd.compat import quiet


def source(name: str) -> str:
    package, _, rest = name.partition(".")
    folder = importlib.util.find_spec(package).submodule_search_locations[0]  # without importing it
    return (Path(folder) / f"{rest.replace('.', '/')}.py").read_text()


@pytest.mark.parametrize("name", [*quiet.IN_DRIVER, *quiet.IN_ROLLOUT, *quiet.IN_RANK])
def test_the_module_still_prints(name):
    assert re.search(r"^ +print\(", source(name), re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in quiet.LOGGERS if "." in name])
def test_the_logger_is_still_the_module_s(name):
    pytest.importorskip(name.partition(".")[0])  # vLLM: in its own environment
    assert re.search(r"^log(ger)? = (logging\.getLogger|init_logger)\(__name__\)$", source(name), re.MULTILINE)


def test_a_muted_module_prints_nothing_and_others_as_before(monkeypatch, capsys):
    module = ModuleType("noisy")
    exec("def announce(): print('a class was found')", module.__dict__)
    monkeypatch.setitem(sys.modules, "noisy", module)
    levels = {name: logging.getLogger(name).level for name in quiet.LOGGERS}
    quiet.mute("noisy")
    module.announce()
    print("the run's own")
    assert capsys.readouterr().out == "the run's own\n"
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
