"""Dependencies point one way: nothing below the trainer pulls in verl or ray."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = ("verl", "ray", "vllm")


def _loaded_by(*modules: str) -> set[str]:
    code = f"import sys\nfor name in {modules!r}: __import__(name)\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "modules",
    [
        ("opd.spec", "opd.overrides", "opd.inputs", "opd.launch"),
        ("opd.losses",),
        ("opd.batch",),
        ("opd.importance",),
        ("opd.data", "opd.data.prepare_grpo_data", "opd.data.process_eval_data", "opd.data.toy.task"),
        ("opd.runs", "opd.runs.run"),
        ("opd.rewards", "opd.rewards.entry"),
        ("opd.evaluation.results",),
        ("opd.agent.execution", "opd.agent.reward", "opd.agent.make_database", "opd.data.prepare_agent_data"),
    ],
    ids=lambda modules: modules[0],
)
def test_what_lies_below_the_trainer_imports_neither_verl_nor_ray(modules):
    assert not _loaded_by(*modules).intersection(_HEAVY)


@pytest.mark.parametrize(
    "module",
    [
        "opd.spec",
        "opd.overrides",
        "opd.inputs",
        "opd.data.toy.task",
        "opd.rewards",
        "opd.runs.run",
        "opd.agent.reward",
        "opd.agent.execution",
    ],
)
def test_what_the_tool_may_use_does_not_import_torch(module):
    assert not _loaded_by(module).intersection(("torch", "transformers", *_HEAVY))
