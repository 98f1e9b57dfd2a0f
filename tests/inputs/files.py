"""Data files and model folders as users have them, whole and broken."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from opd.data.rows import SCHEMA


def prompt_rows(num: int) -> list[dict]:
    """Rows in verl's columns, as `opd.data` prepares them."""
    return [
        {
            "data_source": "math_dapo",
            "prompt": [{"role": "user", "content": f"What is {i} + {i}?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(2 * i)},
            "extra_info": {"split": "train", "index": i, "data_source": "math_dapo", "problem_id": str(i)},
        }
        for i in range(num)
    ]


def write_rows(path: Path, rows: list[dict], schema: pa.Schema | None = SCHEMA) -> str:
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return str(path)


def write_model(folder: Path) -> str:
    """A folder with config, tokenizer and two weight files with an index (safetensors of one number each)."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 8}))
    (folder / "tokenizer.json").write_text("{}")
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    for name in names:
        (folder / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    index = {"weight_map": dict(zip("ab", names, strict=True))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)
