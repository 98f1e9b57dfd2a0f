"""What `--plan` says of options and models that it cannot use as they are."""

import json
from functools import partial

import pytest

from opd.experiment import load_text
from opd.memory import command, device, shapes
from opd.memory.plan import make_plan
from opd.memory.shapes import Unplannable, read_shape
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


def test_a_gpu_that_is_not_in_the_table_is_said_to_be_and_the_key_that_mends_it(told, monkeypatch):
    monkeypatch.setattr(device, "_local", lambda: None)
    code, out, _ = told(gpu="p5.48xlarge")
    assert code == 0
    assert "cluster.gpu.type p5.48xlarge is not in the table (B200, H200, " in out
    assert out.rstrip().endswith("so set opd.gpu_memory_gib")
    assert "opd.gpu_memory_gib" not in told(gpu="p5.48xlarge", kind="sft")[1], "it has no such key"


@pytest.mark.parametrize(
    ("gpu", "weight", "workspace"),
    [
        ("NVIDIA-H200", 0, 1.3),
        ("NVIDIA-H200", 1, 2.6),
        ("A100-SXM4-40GB", 0, 2.6),
        ("NVIDIA-L40S", 0, 2.6),
        ("NVIDIA-B200", 0, 2.6),
    ],
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


@pytest.mark.parametrize(
    "error", [NoCredentialsError("Unable to locate\ncredentials"), ImportError("gs:// needs gcsfs")]
)
def test_a_config_behind_a_store_that_does_not_answer_is_told_by_key_and_fix(told, monkeypatch, error):
    def refuse(path, revision):
        raise error

    monkeypatch.setattr(shapes, "_config_text", refuse)
    code, _, said = told("model.path=s3://bucket/model")
    assert code == 2
    assert said.startswith("opd.launch: --plan: model.path: s3://bucket/model: its config.json cannot be read")
    assert f"({type(error).__name__}: {' '.join(str(error).split())})" in said
    assert "name a folder that has one" in said


def test_a_store_that_is_away_is_no_mistake_of_the_spec(told, monkeypatch):
    monkeypatch.setattr(shapes, "open_store", partial(shapes.open_store, policy=NO_RETRY))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    code, _, said = told("model.path=s3://bucket/model")
    assert code == 1
    assert said.startswith("opd.launch: --plan: cannot read s3://bucket/model/config.json: EndpointConnectionError")


def test_a_path_that_is_neither_folder_nor_id_is_not_asked_of_the_hub():
    with pytest.raises(Unplannable, match=r"\./nomodel: .*there is no such folder.*; name a folder that has one"):
        read_shape("./nomodel")
