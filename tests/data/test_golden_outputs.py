"""The prepared files, byte for byte, for each raw layout and instruction variant."""

from pathlib import Path

from tests.data.golden_files import generate

GOLDEN = Path(__file__).parent.parent / "golden" / "data"


def test_prepared_files_equal_the_golden_ones(tmp_path):
    generate(tmp_path)
    made = {path.relative_to(tmp_path): path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.jsonl")}
    golden = {path.relative_to(GOLDEN): path.read_text(encoding="utf-8") for path in GOLDEN.rglob("*.jsonl")}
    assert made.keys() == golden.keys()
    for path in sorted(golden):
        assert made[path] == golden[path], f"{path} changed: if that is meant, run `python tests/golden/update.py`"
