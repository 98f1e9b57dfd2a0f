"""The tool stays light: no trainer libraries, and nothing heavy before a command needs it."""

import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable

import pytest

import opdctl
from opdctl.cli import NAMES

TRAINER = ("torch", "verl", "ray", "transformers", "tensordict")
HEAVY = ("pyarrow", "matplotlib", "s3fs", "fsspec", "kubernetes", "numpy", "pydantic", "jinja2", "rich")


def loaded_by(code: str) -> set[str]:
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_the_command_line_loads_no_heavy_library_until_a_command_runs() -> None:
    assert not loaded_by("import opdctl.cli") & {*TRAINER, *HEAVY}


@pytest.mark.slow
def test_nothing_that_any_command_imports_loads_the_trainer() -> None:
    names = [module.name for module in pkgutil.walk_packages(opdctl.__path__, "opdctl.")]
    assert "opdctl.runs.compare" in names
    imports = "\n".join(f"import {name}" for name in names)
    assert not loaded_by(imports) & set(TRAINER)


@pytest.mark.slow
@pytest.mark.parametrize("command", NAMES)
def test_the_help_of_every_command_fits_a_screen_and_has_an_example(command: str, inside: Callable) -> None:
    done = inside(command, "--help", COLUMNS="80")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) <= 24
    assert f"opdctl {command}" in done.stdout.split("Example", 1)[1]
