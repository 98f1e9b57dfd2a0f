"""Starts of the four real runs of `make test`, and what each of them must leave: files, log lines, metrics rows."""

import contextlib
import hashlib
import json
import math
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tests.promises.commands import environment, launch

SPECS = Path(__file__).parent / "specs"
RUN_S = 900.0
TOY = {"MODEL_PATH": "toy://student", "TEACHER_MODEL_PATH": "toy://teacher", "MODEL_NAME": "toy-student"}
AGENT = {"MODEL_PATH": "agent://student", "TEACHER_MODEL_PATH": "agent://teacher", "DATABASE_DIR": "agent://database",
         "MAX_ASSISTANT_TURNS": "3", "MAX_TOOL_RESPONSE_LENGTH": "64"}  # fmt: skip
OPD_STEPS = 6
SAMPLES = 4  # answers to a prompt in specs/opd.yaml and specs/grpo.yaml
PROMPTS = 16


@dataclass(frozen=True)
class Left:
    """Remains of a run: its exit code, its log and its folders on the disk and in the store."""

    code: int
    log: str
    folder: Path
    store: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics rows of all attempts, the earliest attempt first."""
        files = sorted(self.folder.glob("attempts/*/metrics.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """One row for each training step: the newest attempt's."""
        rows = {row["step"]: row for row in self.rows if "training/global_step" in row}
        return [rows[step] for step in sorted(rows)]

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.store / "result.json").read_text())

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"global_step_{step}"


def start(folder: Path, kind: str, variables: dict[str, str]) -> subprocess.Popen[str]:
    """Start the experiment file of a kind in a folder; its output goes to the folder's run.log."""
    words = [str(word) for word in launch(SPECS / f"{kind}.yaml")]
    with (folder / "run.log").open("a") as log:
        return subprocess.Popen(words, cwd=folder, env=environment(variables), stdout=log, stderr=subprocess.STDOUT, text=True)  # fmt: skip


def kill_all(process: subprocess.Popen[str]) -> None:
    """Send SIGKILL to every process of a run."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        for child in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.wait(60)


def finish(folder: Path, kind: str, process: subprocess.Popen[str]) -> Left:
    """Wait for a started run and return what it left."""
    try:
        code = process.wait(RUN_S)
    finally:
        kill_all(process)
    out = folder / "out"
    return Left(code, (folder / "run.log").read_text(), out / kind, out / "store" / kind)


def must_end_well(left: Left) -> None:
    """Assert exit code 0, a result and no traceback."""
    assert left.code == 0, left.log[-4000:]
    assert left.result["steps"] == len(left.steps)
    assert "Traceback (most recent call last)" not in left.log
    assert not (left.store / "fatal.json").exists()


def must_log_each_step(left: Left) -> None:
    """Assert one readable line a step in the log."""
    lines = [line for line in left.log.splitlines() if re.search(r"(?<!at )\bstep \d+/\d+\b", line)]
    numbers = [re.search(r"\bstep (\d+)/(\d+)\b", line).groups() for line in lines]
    assert numbers == [(str(step), str(len(left.steps))) for step in range(1, len(left.steps) + 1)]
    for line in lines:
        assert re.search(r"\bloss -?\d+\.\d+", line)
        assert len(line) < 200
        assert "\x1b" not in line


def must_leave_a_row_a_step(left: Left) -> None:
    """Assert one JSON object a step, equal on the disk and in the store."""
    assert [row["training/global_step"] for row in left.steps] == list(range(1, left.result["steps"] + 1))
    for row in left.steps:
        assert {"training/epoch", "timing_s/step", "rollout/trajectories", "rollout/failed"} <= row.keys()
        assert row["rollout/failed"] == 0
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
    last = max((left.folder / "attempts").iterdir()).name
    own, stored = (root / "attempts" / last / "metrics.jsonl" for root in (left.folder, left.store))
    assert [json.loads(line) for line in stored.read_text().splitlines()] == [
        json.loads(line) for line in own.read_text().splitlines()
    ]


def must_seal_its_checkpoint(left: Left) -> None:
    """Assert that the newest checkpoint's manifest names each file with its digest, in both places."""
    for root in (left.folder, left.store):
        step = root / "checkpoints" / f"global_step_{left.result['steps']}"
        manifest = json.loads((step / "manifest.json").read_text())
        files = {str(path.relative_to(step)) for path in step.rglob("*") if path.is_file()}
        assert {item["path"] for item in manifest["files"]} == files - {"manifest.json", "COMPLETE"}
        for item in manifest["files"]:
            assert hashlib.sha256((step / item["path"]).read_bytes()).hexdigest() == item["sha256"], item["path"]
        assert "actor/model_world_size_1_rank_0.pt" in files


def tensors(folder: Path) -> dict[str, Any]:
    """Return every tensor of a checkpoint's model and optimizer by file and place."""
    import torch
    import torch.distributed.tensor  # from then on torch.load with weights_only accepts a DTensor

    found: dict[str, torch.Tensor] = {}

    def look(place: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found[place] = getattr(value, "_local_tensor", value)
        elif isinstance(value, dict):
            for key, item in value.items():
                look(f"{place}/{key}", item)
        elif isinstance(value, list | tuple):
            for number, item in enumerate(value):
                look(f"{place}/{number}", item)

    for file in sorted(folder.glob("actor/*_world_size_*.pt")):
        if file.name.startswith(("model_", "optim_")):
            look(file.name.partition("_")[0], torch.load(file, weights_only=True))
    return found
