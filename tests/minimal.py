"""The smallest valid tree of each kind of experiment."""

from typing import Any

MINIMAL: dict[str, dict[str, Any]] = {
    "grpo": {"kind": "grpo", "model": {"path": "m"}},
    "opd": {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}},
    "opd-agent": {
        "kind": "opd-agent",
        "model": {"path": "m"},
        "teacher": {"path": "t"},
        "agent": {"database_dir": "d"},
    },
    "sft": {"kind": "sft", "model": {"path": "m"}, "data": {"train": "t.parquet", "val": "v.parquet"}},
    "eval": {"kind": "eval", "model": {"path": "m"}},
    "passrate": {"kind": "passrate", "model": {"path": "m"}},
    "convert": {"kind": "convert", "convert": {"checkpoint": "c"}},
    "pipeline": {
        "kind": "pipeline",
        "name": "p",
        "stages": {"a": {"kind": "convert", "convert": {"checkpoint": "c"}}},
    },
}
