"""Dependencies point one way: nothing below the trainer pulls in verl or ray."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

_HEAVY = ("verl", "ray", "vllm")


def _loaded_by(*modules: str) -> set[str]:
    code = f"import sys\nfor name in {modules!r}: __import__(name)\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules",
    [
        ("opd.experiment", "opd.experiment.verl", "opd.inputs", "opd.launch"),
        ("opd.losses",),
        ("opd.batch",),
        ("opd.weights",),
        ("opd.data", "opd.data.prepare_grpo_data", "opd.data.process_eval_data", "opd.data.toy.task"),
        ("opd.runs", "opd.runs.run"),
        ("opd.rewards",),
        ("opd.rollout.cpu.server",),
        ("opd.evaluation.results",),
        ("opd.agent.tool_pool", "opd_envs.travel.reward", "opd_envs.travel.make_database", "opd_envs.travel.prepare"),
    ],
    ids=lambda modules: modules[0],
)
def test_what_lies_below_the_trainer_imports_neither_verl_nor_ray(modules):
    assert not _loaded_by(*modules).intersection(_HEAVY)


def test_what_reads_the_environment_as_it_is_imported_comes_behind_the_launcher_s_setting_of_it():
    """tqdm takes TQDM_DISABLE then, whose bars would share the lines of `logs -f` with ours, and torch OMP_NUM_THREADS."""
    assert not _loaded_by("opd.launch", "opd.trainer.entry").intersection(("tqdm", "torch", *_HEAVY))


# The rooms of `opd` from the lowest to the highest: a room may import rooms of earlier lines, and nothing of its own line.
LAYERS = (
    ("errors", "text"),
    ("redaction", "head_form"),
    ("isolation", "compat", "batch", "losses", "lora"),
    ("store",),
    ("experiment", "rewards"),
    ("data", "runs", "weights"),
    ("agent", "evaluation", "monitor", "shapes"),
    ("memory",),
    ("experiment.verl",),
    ("convert", "inputs"),
    ("cluster",),
    ("pods", "rollout"),
    ("ending", "update"),
    ("trainer.tracking", "evaluation.events"),
    ("evaluation.run",),
    ("trainer", "pipeline"),
    ("job",),
    ("kinds",),
    ("loop",),
    ("trainer.entry",),
    ("check",),
    ("launch",),
    ("main_opd", "quickstart"),
)
TOOL_LAYERS = (
    ("console", "tables"),
    ("kube",),
    ("chart",),
    ("runs",),
    ("doctor", "logs", "report"),
    ("submit",),
    ("commands",),
    ("cli",),
    ("__main__",),
)


def _imports(package: str, folder: Path) -> Iterator[tuple[str, str]]:
    """(module, imported module or name) within `package`, without its own name; imports in functions count too."""
    for path in folder.rglob("*.py"):
        module = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package:
                yield from ((module, f"{node.module}.{alias.name}".partition(".")[2]) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (
                    (module, alias.name.partition(".")[2])
                    for alias in node.names
                    if alias.name.startswith(f"{package}.")
                )


def _room(name: str, rooms: Iterable[str]) -> str:
    found = [room for room in rooms if f"{name}.".startswith(f"{room}.")]
    assert found, f"{name} is in no room of LAYERS"
    return max(found, key=len)


@pytest.mark.parametrize(("package", "layers"), [("opd", LAYERS), ("opdctl", TOOL_LAYERS)])
def test_rooms_import_only_what_lies_below_them(package, layers):
    level = {room: number for number, line in enumerate(layers) for room in line}
    folder = Path(importlib.import_module(package).__file__).parent
    upwards = []
    for module, imported in _imports(package, folder):
        if module:
            own, other = _room(module, level), _room(imported, level)
            if own != other and level[own] <= level[other]:
                upwards.append(f"{package}.{module} imports {package}.{imported}")
    assert upwards == []


def test_the_core_imports_no_environment_and_no_environment_another():
    source = Path(importlib.import_module("opd").__file__).parents[1]
    names = [path.name for path in (source / "opd_envs").iterdir() if (path / "__init__.py").exists()]
    places = {"opd": "opd_envs"} | {f"opd_envs/{name}": f"opd_envs.(?!{name}\\b)({'|'.join(names)})" for name in names}
    found = [
        path
        for folder, foreign in places.items()
        for path in (source / folder).rglob("*.py")
        if re.search(rf"^\s*(from|import) {foreign}\b", path.read_text(), re.MULTILINE)
    ]
    assert (len(names), found) == (2, [])
