"""Answers of `--plan` to options and models that it cannot use as they are."""

import json
from functools import partial

import pytest

from opd import shapes
from opd.experiment import load_text
from opd.memory import command
from opd.memory.plan import make_plan
from opd.store.base import NO_RETRY

SIZES = {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 128, "vocab_size": 1000}  # fmt: skip


@pytest.fixture
def told(tmp_path, capsys):
    """(exit code, stdout, stderr) of a plan of two tiny models."""
    (tmp_path / "config.json").write_text(json.dumps(SIZES))

    def run(*sets, gpu="NVIDIA-H200", kind="opd"):
        tree = {"kind": kind, "model": {"path": str(tmp_path)}, "trainer": {"gpus_per_node": 1}}
        tree |= {"data": {"train": "t", "val": "v"}} if kind == "sft" else {"teacher": {"path": str(tmp_path)}}
        loaded = load_text(json.dumps(tree | {"cluster": {"gpu": {"type": gpu}}}), is_json=True, sets=sets)
        code = command.run(loaded)
        return code, *capsys.readouterr()

    return run


def test_a_gpu_that_the_table_lacks_is_named_with_the_key_that_helps(told):
    code, out, _ = told(gpu="p5.48xlarge")
    assert code == 0
    assert "cluster.gpu.type p5.48xlarge is none of B200, H200, " in out
    assert out.rstrip().endswith("set it, or opd.gpu_memory_gib")
    assert "opd.gpu_memory_gib" not in told(gpu="p5.48xlarge", kind="sft")[1], "it has no such key"


@pytest.mark.parametrize(
    ("gpu", "weight", "workspace"), [("NVIDIA-H200", 0, 1.3), ("NVIDIA-H200", 1, 2.6), ("NVIDIA-L40S", 0, 2.6)]
)
def test_the_head_is_planned_in_the_form_that_the_declared_gpu_runs(told, monkeypatch, gpu, weight, workspace):
    jobs = []
    monkeypatch.setattr(command, "make_plan", lambda job: jobs.append(job) or make_plan(job))
    sets = ("device=cuda", "rollout.num_samples=2", f"opd.policy.weight={weight}")
    told(*sets, gpu=gpu)
    told(*sets, "opd.workspace_gib=4.1", gpu=gpu)
    assert [job.workspace_bytes / 2**30 for job in jobs] == pytest.approx([workspace, 4.1])


class NoCredentialsError(Exception):
    """botocore's is no OSError either."""


def test_a_config_that_cannot_be_read_is_told_by_path_and_fix(told, monkeypatch):
    def refuse(path):
        raise NoCredentialsError("Unable to locate\ncredentials")

    monkeypatch.setattr(shapes, "open_store", refuse)
    code, _, said = told("model.path=s3://bucket/model")
    assert code == 2
    assert said.startswith("opd.launch: --plan: s3://bucket/model: its config.json cannot be read")
    assert "(NoCredentialsError: Unable to locate credentials). Name a folder that has one" in said


def test_an_unreachable_store_is_no_mistake_of_the_spec(told, monkeypatch):
    monkeypatch.setattr(shapes, "open_store", partial(shapes.open_store, policy=NO_RETRY))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    code, _, said = told("model.path=s3://bucket/model")
    assert code == 1
    assert said.startswith("opd.launch: --plan: cannot read s3://bucket/model/config.json: EndpointConnectionError")
