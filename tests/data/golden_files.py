"""Makes the golden outputs of data preparation: every prepared file as JSON lines, for each raw layout and variant."""

import json
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from tests.data.raw_layouts import aime24_capitalised_rows, aime24_solution_only_rows, write_raw

from opd.data import prepare_grpo_data, process_eval_data


def generate(directory: Path) -> None:
    """Runs both commands on the raw layouts and writes what they prepared below `directory`."""
    with tempfile.TemporaryDirectory() as scratch:
        lower = write_raw(Path(scratch) / "lower")
        capitalised = write_raw(Path(scratch) / "capitalised", aime24=aime24_capitalised_rows())
        solution_only = write_raw(Path(scratch) / "solution_only", aime24=aime24_solution_only_rows())
        for variant in ("boxed", "dapo", "none"):
            output = Path(scratch) / "grpo" / variant
            prepare_grpo_data.main(["--data-dir", str(lower), "--output-dir", str(output), "--variant", variant])
            _as_json_lines(output, directory / "grpo" / variant)
        for name, data_dir, sets in (
            ("all_sets", lower, ["aime24", "aime25", "math500"]),
            ("aime24_capitalised", capitalised, ["aime24"]),
            ("aime24_solution_only", solution_only, ["aime24"]),
        ):
            output = Path(scratch) / "eval" / name
            process_eval_data.main(["--data-dir", str(data_dir), "--output-dir", str(output), "--sets", *sets])
            _as_json_lines(output, directory / "eval" / name)


def _as_json_lines(prepared: Path, golden: Path) -> None:
    """Every Parquet file below `prepared` as a readable twin: its schema, then a row a line."""
    for path in sorted(prepared.rglob("*.parquet")):
        table = pq.read_table(path)
        twin = (golden / path.relative_to(prepared)).with_suffix(".jsonl")
        twin.parent.mkdir(parents=True, exist_ok=True)
        schema = {field.name: str(field.type) for field in table.schema}
        lines = [json.dumps(row, ensure_ascii=False) for row in (schema, *table.to_pylist())]
        twin.write_text("\n".join(lines) + "\n", encoding="utf-8")
