"""What doctor, render and submit say of data, models and programs that no pod of the run can have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.charts.helm import DIGEST

from gotools import find
from opd.config.parse import parse_tree
from opdctl.doctor.rendered import _is_below, check_held
from opdctl.kube.client import ROLE_LABEL

ROOT = Path(__file__).parents[2]
MOUNTS = [("scratch", "/tmp"), ("checkpoints", "/opd"), ("mount-0", "/data")]


def rendered(claim: str = "run-checkpoints") -> str:
    """A run's objects, as far as they say what the pods hold; `claim`: of the run's own volume, which the chart makes."""
    sources: dict[str, Any] = {
        "scratch": {"emptyDir": {}},
        "checkpoints": {"persistentVolumeClaim": {"claimName": claim}},
        "mount-0": {"persistentVolumeClaim": {"claimName": "data"}},
    }
    container = {
        "name": "ray", "workingDir": "/opd", "volumeMounts": [{"name": name, "mountPath": path} for name, path in MOUNTS],
    }  # fmt: skip
    pod = {"containers": [container], "volumes": [{"name": name, **source} for name, source in sources.items()]}
    template = {"metadata": {"labels": {ROLE_LABEL: "head"}}, "spec": pod}
    job = {
        "kind": "RayJob",
        "metadata": {"name": "r"},
        "spec": {"rayClusterSpec": {"headGroupSpec": {"template": template}}},
    }
    made = {"kind": "PersistentVolumeClaim", "metadata": {"name": "run-checkpoints"}}
    return f"{json.dumps(job)}\n---\n{json.dumps(made)}\n"


def said(text: str = "", **keys: Any) -> list[str]:
    tree = {
        "kind": "opd",
        "name": "r",
        "model": {"path": "toy://student"},
        "teacher": {"path": "hub/T"},
        "data": {"dir": "/data"},
        **keys,
    }
    return [f"{check.state}: {check.message}" for check in check_held(parse_tree(tree).spec, text or rendered())]


def data(*train: str) -> dict[str, Any]:
    return {"train": list(train), "val": ["/data/val.parquet"]}


@pytest.mark.parametrize(
    "path", ["/home/me/a.parquet", "/tmp/a.parquet", "/database/a.parquet", "/data/../home/a.parquet"]
)
def test_a_file_that_lies_under_no_volume_that_could_have_it_is_a_warning(path: str) -> None:
    assert said(data=data(path)) == [f"warning: data.train {path}: no volume of the pods holds it"]


@pytest.mark.parametrize("path", ["/data/a.parquet", "/opd/a.parquet", "s3://b/a.parquet", "toy://train"])
def test_a_file_on_a_volume_a_url_and_a_bundled_name_are_none(path: str) -> None:
    assert said(data=data(path)) == []


def test_a_relative_file_can_only_be_on_a_volume_that_was_there_before() -> None:
    [line] = said(data=data("train.parquet", "more.parquet"))
    assert line == (
        "warning: data.train train.parquet and 1 more: no volume of the pods holds it; pods look for it in /opd, the run's new volume"
    )
    assert said(rendered(claim="shared"), data=data("train.parquet")) == []


def test_the_folder_of_prepared_files_counts_and_its_default_is_relative() -> None:
    assert [line.split(":")[1] for line in said(data={})] == [
        " data.train data/grpo_processed/train.parquet", " data.val data/grpo_processed/val_math500.parquet and 2 more"
    ]  # fmt: skip


def test_a_models_folder_counts_and_a_hub_id_does_not() -> None:
    assert said(model={"path": "/models/m"}) == ["warning: model.path /models/m: no volume of the pods holds it"]
    assert said(teacher={"path": "./m"})[0].startswith("warning: teacher.path ./m: no volume")
    assert said(model={"path": "Qwen/Qwen3-1.7B"}) == []


def test_a_scorer_and_what_tools_read_count_and_modules_do_not() -> None:
    tools = {"kind": "opd-agent", "data": data("/data/a.parquet")}
    places = {"database_dir": "agent://database", "toolset": "/code/tools.py", "tool_config_path": "cfg/tools.yaml"}
    assert [line.split(": no volume")[0] for line in said(**tools, agent=places)] == [
        "warning: agent.toolset /code/tools.py", "warning: agent.tool_config_path cfg/tools.yaml"
    ]  # fmt: skip
    assert said(**tools, agent={"database_dir": "/data/db", "toolset": "my.tools"}) == []
    [line] = said(data=data("/data/a.parquet"), reward={"function": "custom", "path": "/home/me/score.py"})
    assert line == "warning: reward.path /home/me/score.py: no volume of the pods holds it"
    assert said(data=data("/data/a.parquet"), reward={"function": "custom", "path": "/data/score.py"}) == []


@pytest.mark.helm
def test_a_tool_database_that_the_pods_fetch_is_there(inside: Callable, tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(
        "{kind: opd-agent, name: r, model: {path: hub/m}, teacher: {path: hub/t}, agent: {database_dir: /db}, "
        "data: {train: ['s3://b/t.parquet'], val: ['s3://b/v.parquet']}, "
        f"cluster: {{toolDatabase: {{url: 's3://b/db.tar', sha256: {'a' * 64}}}}}}}"
    )
    done = inside("render", "exp.yaml", "--image", DIGEST, "--charts", ROOT / "charts", OPDCTL_HELM=str(find("helm")))
    assert done.returncode == 0, done.stderr
    assert "no volume" not in done.stderr


@pytest.mark.parametrize(("mount", "path"), [("/db/", "/db"), ("/db", "/db/"), ("/db/", "/db/x"), ("/", "/db")])
def test_a_closing_slash_of_a_mount_or_a_path_means_nothing(mount: str, path: str) -> None:
    assert _is_below(path, [mount])


def test_a_stage_of_a_pipeline_is_named() -> None:
    stages = {
        "distil": {"kind": "opd", "model": {"path": "hub/m"}, "teacher": {"path": "hub/T"}, "data": data("/x.parquet")}
    }
    found = check_held(parse_tree({"kind": "pipeline", "name": "p", "stages": stages}).spec, rendered())
    assert [check.message.split(":")[0] for check in found] == ["stages.distil.data.train /x.parquet"]
    assert [check.name for check in found] == ["data"]


@pytest.mark.helm
@pytest.mark.parametrize("command", [("doctor", "--no-cluster"), ("render",)])
def test_doctor_and_render_say_it_by_what_the_chart_renders(
    inside: Callable, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "exp.yaml").write_text(
        "{kind: opd, name: r, model: {path: hub/m}, teacher: {path: /models/t}, "
        "data: {train: [train.parquet], val: [/data/v.parquet]}, cluster: {mounts: [{claim: d, path: /data}]}}"
    )
    done = inside(*command, "exp.yaml", "--image", DIGEST, "--charts", ROOT / "charts", OPDCTL_HELM=str(find("helm")))
    assert done.returncode == 0, done.stderr
    told = done.stdout if command[0] == "doctor" else done.stderr
    assert "teacher.path /models/t: no volume of the pods holds it" in told
    assert "data.train train.parquet: no volume of the pods holds it; pods look for it in /opd" in told
    assert "data.val" not in told
