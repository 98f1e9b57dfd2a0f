"""The front door looks at data and models first: exit code 2 with key, value, rule and fix, and nothing heavy or lasting."""

import json
from pathlib import Path

import pytest
from tests.forks import DRY_RUN, run_forked
from tests.inputs.files import prompt_rows, write_model, write_rows
from tests.launch.test_launch import CLEAN, HEAVY

from opd.store.local import LocalStore

CODE = (
    "import sys; from opd.launch import main; code = main(); "
    f"print('heavy:', [m for m in {HEAVY} if m in sys.modules], file=sys.stderr); sys.exit(code)"
)


@pytest.fixture
def start(tmp_path):
    """Starts a distillation whose inputs are whole but for `sets`, in a working directory of its own."""
    teacher, student = write_model(tmp_path / "teacher"), write_model(tmp_path / "student")
    train = write_rows(tmp_path / "train.parquet", prompt_rows(16))
    whole = {"model.path": student, "teacher.path": teacher, "data.train": f"[{train}]", "data.val": f"[{train}]",
             "data.train_batch_size": "16", "actor.ppo_mini_batch_size": "16"}  # fmt: skip
    (tmp_path / "exp.yaml").write_text(
        "kind: opd\nname: exp\ndevice: cpu\ntrainer: {gpus_per_node: 1}\noutput: {root: out}\n"
    )

    def run(code=CODE, env=None, **sets):
        values = whole | {key.replace("__", "."): value for key, value in sets.items()}
        words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        return run_forked(DRY_RUN, "-c", code, "exp.yaml", *words, cwd=tmp_path, env=CLEAN | (env or {}))

    return run


@pytest.mark.parametrize(
    ("sets", "path", "words"),
    [
        ({"data__train": "[short.parquet]"}, "data.train_batch_size", "data.train has 3"),
        ({"model__path": "half"}, "model.path", "2 of the 2 weight files"),
        ({"model__path": "short", "data__max_response_length": 8192}, "data.max_response_length", "at most 2048,"),
        ({"teacher__path": "capped"}, "teacher.path", "config.json has final_logit_softcapping: 30"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_a_fault_of_data_or_models_ends_with_exit_2_before_anything_is_imported_or_written(
    tmp_path, start, sets, path, words
):
    write_rows(tmp_path / "short.parquet", prompt_rows(3))
    for file in Path(write_model(tmp_path / "half")).glob("*.safetensors"):
        file.unlink()
    config = Path(write_model(tmp_path / "capped")) / "config.json"
    config.write_text(json.dumps({"model_type": "gemma2", "final_logit_softcapping": 30.0}))
    config = Path(write_model(tmp_path / "short")) / "config.json"
    config.write_text(json.dumps({"max_position_embeddings": 4096}))
    done = start(**sets)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("exp.yaml: ")
    assert f"  {path}" in lines
    assert words in done.stderr
    assert "fix: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "heavy: []" in done.stderr
    assert not (tmp_path / "out").exists(), "a person mends it and starts the same name again"


def test_in_a_cluster_the_run_is_marked_so_that_no_later_attempt_takes_gpus(tmp_path, start):
    installed = {"RAY_ADDRESS": "auto", "OPD_INSTALL": "first"}
    done = start(env=installed, data__train="[missing.parquet]")
    assert done.returncode == 2
    store = LocalStore(tmp_path / "out" / "store" / "exp")
    assert "missing.parquet" in store.get_json("fatal.json")["reason"]
    assert store.get_json("attempts/0001/ended.json")["outcome"] == "fatal"
    assert b"no such file" in store.get("attempts/0001/driver.log")
    # The file has come meanwhile: the next attempt ends all the same, before the trainer is imported.
    again = start(env=installed, data__train="[missing.parquet]")
    assert again.returncode == 2
    assert "ended for good in attempt 1" in again.stderr
