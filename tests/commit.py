"""The commit of the project that made a table."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNKNOWN = "unknown"


def this_commit(*written: Path) -> str:
    """Return the short hash of the checked-out commit, with `+` if tracked files differ; or COMMIT of the environment.

    Args:
        written: files that differ since the run itself writes them.

    Returns:
        `unknown` outside git.
    """
    if "COMMIT" in os.environ:  # of a copy without `.git`
        return os.environ["COMMIT"]
    inside = [path.resolve() for path in written if path.resolve().is_relative_to(ROOT)]
    others = [f":!{path.relative_to(ROOT)}" for path in inside]
    commit = _git("rev-parse", "--short=7", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", *others)
    return f"{commit}+" if changed else commit or UNKNOWN


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
