"""`python tests/golden/update.py`: the one command that changes golden files; look at the diff before committing it."""

import shutil
import sys
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent
ROOT = GOLDEN.parent.parent


def main() -> None:
    """Rewrites each golden folder from its generator."""
    sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tools")]
    from tests.data.golden_files import generate
    from tests.golden.experiments import manifests, overrides

    for folder, generator in {"data": generate, "overrides": overrides, "manifests": manifests}.items():
        shutil.rmtree(GOLDEN / folder, ignore_errors=True)
        generator(GOLDEN / folder)
        print(f"wrote {GOLDEN / folder}")


if __name__ == "__main__":
    main()
