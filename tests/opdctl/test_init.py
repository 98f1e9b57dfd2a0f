"""`opdctl init` writes two files that the tool and the charts take, and nothing over existing files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fast_tier.nodes import NODES

import gotools
from opdctl.chart.starting import gpu_types
from opdctl.chart.values import load_experiments

DIGEST = f"registry.example/opd@sha256:{'0' * 64}"
MODELS = ("--student", "Qwen/Qwen3-1.7B", "--teacher", "Qwen/Qwen3-8B")
FILES = ("--data", "s3://b/a.parquet,s3://b/b.parquet", "--val", "s3://b/val.parquet")
SITE = ("--image", DIGEST, "--store", "s3://experiments/opd", "--endpoint", "http://minio.minio:9000")


@pytest.mark.helm
def test_options_make_files_that_doctor_takes_and_the_command_for_the_secret(inside: Callable, tmp_path: Path) -> None:
    more = ("--queue", "training", "--gpu-type", "H100", "--gpus", 4)
    done = inside("init", "-n", "team", "--no-cluster", *MODELS, *FILES, *SITE, *more)
    assert done.returncode == 0, done.stderr
    [found] = load_experiments(tmp_path / "exp.yaml", site=tmp_path / "site.yaml", env={})
    assert found.spec.data.train == ("s3://b/a.parquet", "s3://b/b.parquet")
    assert found.spec.trainer.gpus_per_node == 4
    assert found.values["cluster"]["queue"] == {"manager": "kueue", "name": "training"}
    assert "kubectl create secret generic experiment-store -n team --from-env-file=store.env" in done.stdout
    assert "opdctl doctor exp.yaml --site site.yaml -n team" in done.stdout
    helm = str(gotools.find("helm"))
    checked = inside("doctor", "--no-cluster", "exp.yaml", "--site", "site.yaml", OPDCTL_HELM=helm)
    assert checked.returncode == 0, checked.stdout
    assert "MISSING" not in checked.stdout


def test_no_file_is_overwritten_without_force(inside: Callable, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("mine")
    refused = inside("init", "--no-cluster", *MODELS, *FILES, *SITE)
    assert refused.returncode == 2
    assert "site.yaml: there already" in refused.stderr
    assert (tmp_path / "site.yaml").read_text() == "mine"
    assert not (tmp_path / "exp.yaml").exists()
    assert inside("init", "--no-cluster", "--force", *MODELS, *FILES, *SITE).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*FILES, *SITE), "--student"),
        ((*MODELS, "--data", "a.parquet"), "--val"),
        ((*MODELS, *FILES, "--storage-class", "Not A Name"), "cluster.checkpoints.storageClass"),
        ((*MODELS, "--data", "a.parquet,b.csv", "--val", "v.parquet"), "data.train 'b.csv'"),
        ((*MODELS, "--data", "prepared", "--val", "v.parquet"), "--val v.parquet would have no effect"),
    ],
)
def test_a_wrong_option_is_named_before_a_file_is_written(
    inside: Callable, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = inside("init", "--no-cluster", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.parametrize("folder", ["prepared", "s3://b/prepared", "/mnt/v1.5/"])
def test_a_name_without_a_suffix_or_with_a_slash_at_its_end_is_a_folder(
    inside: Callable, tmp_path: Path, folder: str
) -> None:
    done = inside("init", "--no-cluster", *MODELS, "--data", folder)
    assert done.returncode == 0, done.stderr
    [found] = load_experiments(tmp_path / "exp.yaml", site=tmp_path / "site.yaml", env={})
    assert found.spec.data.dir == folder
    assert found.values["cluster"] == {}


def test_types_of_gpu_are_read_from_labels_and_capacity_with_tolerations_for_taints() -> None:
    found = gpu_types(NODES)
    assert [item.num_gpus for item in found] == sorted((item.num_gpus for item in found), reverse=True)
    assert all(item["operator"] == "Exists" for gpu in found for item in gpu.tolerations)
