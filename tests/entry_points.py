"""The working tree's entry points, for tests and the processes they start: the installed ones may be another checkout's."""

import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/entry_points"


def use() -> None:
    """Write the entry points of pyproject.toml as a distribution's metadata, first on the import path and PYTHONPATH."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = []
    for group, points in {"console_scripts": project["scripts"], **project["entry-points"]}.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    folder = FOLDER / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    for name, text in {"METADATA": metadata, "entry_points.txt": "\n".join(lines) + "\n"}.items():
        scratch = folder / f".{name}.{os.getpid()}"
        scratch.write_text(text)
        scratch.replace(folder / name)
    sys.path.insert(0, str(FOLDER))
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(FOLDER)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER), *others])
