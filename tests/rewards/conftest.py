"""Puts the scorers written for these tests on the path, which scorer processes inherit."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "scorers"))
