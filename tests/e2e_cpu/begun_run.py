"""A run begun with one version of the code and killed behind its first checkpoint, packed for later versions to resume.

`PYTHONPATH=SRC_OF_THAT_VERSION python -m tests.e2e_cpu.begun_run OUT.tar.xz` makes one: run directory, object store, the
two tiny models that it names, and `expected.json`, the metrics of the same run left uninterrupted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from tests.e2e_cpu.runs import kill_all

NAME = "begun"
SEALED_STEP = 2
TOTAL_STEPS = 4
# Relative paths only: the folder is unpacked elsewhere.
SPEC = f"""\
kind: opd
name: {NAME}
seed: 3
device: cpu
model: {{path: models/student}}
teacher: {{path: models/teacher}}
data:
  train: [toy://train]
  val: [toy://heldout]
  train_batch_size: 16
  max_prompt_length: 32
  max_response_length: 8
  max_train_samples: 48
  max_val_samples: 16
rollout:
  num_samples: 1
  val: {{num_samples: 1, temperature: 0}}
actor:
  ppo_mini_batch_size: 8
  ppo_micro_batch_size_per_gpu: 4
  learning_rate: 3e-4
reward: {{function: exact_match}}
trainer: {{gpus_per_node: 1, total_steps: {TOTAL_STEPS}, save_freq: {SEALED_STEP}, total_epochs: 9, test_freq: -1}}
store: {{url: store}}
output: {{root: out}}
"""


def command() -> list[str]:
    """Starts the run in the working directory, or goes on with it."""
    return [sys.executable, "-m", "opd.launch", "exp.yaml", "--no-env"]


def write_inputs(folder: Path) -> None:
    """The experiment file and two random models of 32 hidden units over the toy tokenizer, 60 KB each."""
    from opd.data.tiny_qwen3 import build_tiny_qwen3
    from opd.data.toy.tokenizer import MODEL_MAX_LENGTH, build_tokenizer

    (folder / "exp.yaml").write_text(SPEC)
    tokenizer = build_tokenizer()
    for seed, name in enumerate(("student", "teacher")):
        target = folder / "models" / name
        build_tiny_qwen3(
            tokenizer,
            num_layers=1,
            hidden_size=32,
            num_vocab_rows=len(tokenizer),
            max_position_embeddings=MODEL_MAX_LENGTH,
            seed=seed,
        ).save_pretrained(target)
        tokenizer.save_pretrained(target)


def rows(folder: Path) -> list[dict[str, float]]:
    """The training steps' rows of all attempts in `folder`, merged as `collect` merges them."""
    from opd.runs.metrics import read_metrics
    from opd.store.local import LocalStore

    # A run that lost its disk has the rows of earlier attempts in the store only.
    places = [LocalStore(folder / place / NAME) for place in ("store", "out")]
    merged = [dict(row) for row in read_metrics(places).rows]
    return [row for row in merged if "training/global_step" in row]


def main(target: Path) -> None:
    """Run once to the end for the expected rows, once more up to a SIGKILL, and pack the second."""
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as killed:
        for folder in (Path(whole), Path(killed)):
            write_inputs(folder)
        subprocess.run(command(), cwd=whole, check=True)
        (Path(killed) / "expected.json").write_text(json.dumps(rows(Path(whole)), indent=1))
        _kill_behind_the_first_seal(Path(killed))
        with tarfile.open(target, "w:xz") as archive:
            archive.add(killed, arcname=".", filter=lambda info: None if info.name.endswith("/data") else info)


def _kill_behind_the_first_seal(folder: Path) -> None:
    process = subprocess.Popen(command(), cwd=folder)
    sealed = folder / "store" / NAME / "checkpoints" / f"global_step_{SEALED_STEP}" / "COMPLETE"
    while not sealed.exists():
        if process.poll() is not None:
            raise SystemExit(f"the run ended before step {SEALED_STEP} was sealed")
        time.sleep(0.01)
    kill_all(process.pid)
    process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
