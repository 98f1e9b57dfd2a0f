"""What `opdctl init` writes: two files that the tool and the charts take, and nothing over what is there."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fast_tier.nodes import NODES

import gotools
from opdctl.chart.starting import gpu_types
from opdctl.chart.values import load_experiments

from .conftest import PYTHON_PATH

DIGEST = f"registry.example/opd@sha256:{'0' * 64}"
MODELS = ("--student", "Qwen/Qwen3-1.7B", "--teacher", "Qwen/Qwen3-8B")
FILES = ("--data", "s3://b/a.parquet,s3://b/b.parquet", "--val", "s3://b/val.parquet")
SITE = ("--image", DIGEST, "--store", "s3://experiments/opd", "--endpoint", "http://minio.minio:9000")


@pytest.mark.helm
def test_flags_alone_make_files_that_doctor_takes_and_the_commands_for_the_secrets(
    inside: Callable, tmp_path: Path
) -> None:
    more = ("--hub-secret", "hub:token", "--pull-secret", "registry", "--queue", "training", "--gpu-type", "H100")
    done = inside("init", "-n", "team", "--no-cluster", *MODELS, *FILES, *SITE, *more)
    assert done.returncode == 0, done.stderr
    [found] = load_experiments(tmp_path / "exp.yaml", site=tmp_path / "site.yaml", env={})
    assert found.spec.data.train == ("s3://b/a.parquet", "s3://b/b.parquet")
    assert found.values["cluster"]["queue"] == {"manager": "kueue", "name": "training"}
    assert found.values["cluster"]["lifecycle"] == "suspendable"
    for words in (
        "kubectl create secret generic experiment-store -n team --from-env-file=store.env",
        "kubectl create secret generic hub -n team --from-file=token=hub.token",
        "kubectl create secret docker-registry registry -n team",
        "opdctl doctor exp.yaml --site site.yaml -n team",
    ):
        assert words in done.stdout
    checked = inside(
        "doctor", "--no-cluster", "exp.yaml", "--site", "site.yaml", OPDCTL_HELM=str(gotools.find("helm"))
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout
    assert "MISSING" not in checked.stdout


def test_no_file_is_overwritten_unless_asked_for(inside: Callable, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("mine")
    refused = inside("init", "--no-cluster", *MODELS, *FILES, *SITE)
    assert refused.returncode == 2
    assert "site.yaml: there already" in refused.stderr
    assert (tmp_path / "site.yaml").read_text() == "mine"
    assert not (tmp_path / "exp.yaml").exists()
    assert inside("init", "--no-cluster", "--force", *MODELS, *FILES, *SITE).returncode == 0
    assert "registry.example" in (tmp_path / "site.yaml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*FILES, *SITE), "--student"),
        ((*MODELS, *SITE), "--data"),
        ((*MODELS, "--data", "a.parquet"), "--val"),
        ((*MODELS, *FILES, "--image", "opd:latest"), "named by its digest"),
        ((*MODELS, *FILES, "--hub-secret", "hub"), "NAME:KEY"),
        ((*MODELS, *FILES, "--storage-class", "Not A Name"), "cluster.checkpoints.storageClass"),
        (
            (*MODELS, "--data", "train.csv", "--val", "v.parquet"),
            "data.train 'train.csv': a prompt file ends in one of",
        ),
        ((*MODELS, "--data", "a.parquet,b.csv", "--val", "v.parquet"), "data.train 'b.csv'"),
        ((*MODELS, "--data", "a.parquet", "--val", "v.txt"), "data.val 'v.txt'"),
        ((*MODELS, "--data", "prepared", "--val", "v.parquet"), "--val v.parquet would have no effect"),
    ],
)
def test_what_is_missing_or_wrong_is_named_before_anything_is_written(
    inside: Callable, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = inside("init", "--no-cluster", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.parametrize(
    ("train", "val"),
    [("s3://b/train.jsonl", "s3://b/val.jsonl"), ("a.json,b.parquet", "c.json"), ("toy://train", "toy://heldout")],
)
def test_every_kind_of_prompt_file_that_is_read_is_taken_for_a_file(
    inside: Callable, tmp_path: Path, train: str, val: str
) -> None:
    done = inside("init", "--no-cluster", *MODELS, "--data", train, "--val", val, *SITE)
    assert done.returncode == 0, done.stderr
    [found] = load_experiments(tmp_path / "exp.yaml", site=tmp_path / "site.yaml", env={})
    assert (found.spec.data.train, found.spec.data.val) == (tuple(train.split(",")), (val,))


@pytest.mark.parametrize("folder", ["prepared", "s3://b/prepared", "/mnt/v1.5/"])
def test_a_name_without_a_suffix_and_one_that_ends_in_a_slash_is_a_folder(
    inside: Callable, tmp_path: Path, folder: str
) -> None:
    done = inside("init", "--no-cluster", *MODELS, "--data", folder, *SITE)
    assert done.returncode == 0, done.stderr
    [found] = load_experiments(tmp_path / "exp.yaml", site=tmp_path / "site.yaml", env={})
    assert found.spec.data.dir == folder


def test_answers_that_say_nothing_of_the_site_make_a_site_file_that_can_be_read(
    inside: Callable, tmp_path: Path
) -> None:
    done = inside("init", "--no-cluster", *MODELS, *FILES)
    assert done.returncode == 0, done.stderr
    [found] = load_experiments(tmp_path / "exp.yaml", site=tmp_path / "site.yaml", env={})
    assert found.values["cluster"] == {}


@pytest.mark.parametrize(
    ("flag", "value", "needed"),
    [
        ("--pull-secret", "registry", "--image"),
        ("--endpoint", "http://minio:9000", "a --store that is a URL"),
        ("--store-secret", "keys", "a --store that is a URL"),
        ("--context", "team", "a look at the cluster"),
    ],
)
def test_a_flag_without_effect_is_told(inside: Callable, flag: str, value: str, needed: str) -> None:
    done = inside("init", "--no-cluster", *MODELS, *FILES, flag, value)
    assert done.returncode == 0, done.stderr
    assert f"note: {flag} {value} has no effect without {needed}" in done.stderr


@pytest.mark.slow
def test_on_a_terminal_it_asks_for_what_no_flag_says_and_again_after_a_wrong_answer(tmp_path: Path) -> None:
    mine, theirs = pty.openpty()
    flags = ("--no-cluster", "--teacher", "T", "--val", "v.parquet", *SITE[:2], "--pull-secret", "", "--queue", "")
    answers = ["", "hub/S", "train.parquet", "s3://experiments/opd", "minio:9000", "http://minio:9000", "store-keys"]
    answers += ["hub", "hub:token", "-", "H200", "four", "4", "Not A Name", ""]
    os.write(mine, "".join(f"{answer}\n" for answer in answers).encode())
    done = subprocess.run(
        [sys.executable, "-m", "opdctl.cli", "init", *flags],
        stdin=theirs,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(mine)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    [found] = load_experiments(tmp_path / "exp.yaml", site=tmp_path / "site.yaml", env={})
    assert found.spec.model.path == "hub/S"
    assert found.spec.trainer.gpus_per_node == 4
    assert found.spec.store.endpoint == "http://minio:9000"
    refused = [line for line in done.stderr.splitlines() if line.startswith("  store.endpoint") or "error: " in line]
    assert len(refused) == 6, done.stderr
    cluster = found.values["cluster"]
    assert cluster["secrets"] == {"store": "store-keys", "huggingFace": {"secret": "hub", "key": "token"}}
    assert cluster["gpu"] == {"type": "H200"}
    assert "storageClass" not in cluster.get("checkpoints", {})


def test_what_no_flag_says_is_named_at_once_where_nobody_can_be_asked(inside: Callable) -> None:
    done = inside("init", "--no-cluster")
    assert done.returncode == 2
    for words in ("model.path", "teacher.path", "data.train", "--student", "--teacher", "--data", "--val"):
        assert words in done.stderr


def test_the_types_of_gpu_come_from_the_nodes_with_what_their_taints_ask_for() -> None:
    found = {item.name: item for item in gpu_types(NODES)}
    assert len(found) == 3
    assert {item.num_gpus for item in found.values()} == {8}
    tolerations = {name: item.tolerations for name, item in found.items()}
    assert sorted(map(len, tolerations.values())) == [0, 1, 1]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in max(tolerations.values(), key=len)
