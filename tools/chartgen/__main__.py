"""`python -m chartgen [--check]`: write the generated files of the charts, or say which ones differ."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chartgen.chart import LIBRARY, charts, values_schema
from chartgen.constants import constants_tpl
from chartgen.values import layout, values_yaml

ROOT = Path(__file__).resolve().parents[2]


def generated(root: Path = ROOT) -> dict[Path, str]:
    """Every generated file below `root` and its text."""
    library = Path("charts") / LIBRARY
    files = {library / "templates/_constants.tpl": constants_tpl(root / "uv.lock")}
    for chart in charts():
        folder = Path("charts") / chart.kind
        files[folder / "values.yaml"] = values_yaml(chart)
        files[folder / "values.schema.json"] = layout(values_schema(chart)) + "\n"
    return files


def drifted(root: Path = ROOT) -> dict[Path, str]:
    """Return the generated files that are missing or differ, each with the text that it should have."""
    return {
        path: text
        for path, text in generated(root).items()
        if not (root / path).is_file() or (root / path).read_text() != text
    }


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chartgen", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file differs")
    check = parser.parse_args().check
    stale = drifted()
    for path, text in stale.items():
        print(f"{path} differs from opd.config: run `make schema`" if check else f"wrote {path}")
        if not check:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
