"""An endpoint that only the experiment's file names reaches every program of the run, and the tool."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runs.s3.server import ACCESS_KEY, BUCKET, SECRET_KEY

from opd.store.access import apply_experiment, storage_options, under
from opd.store.remote import open_store


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Credentials and nothing else about S3."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    variables = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_CONFIG_FILE": "/dev/null"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def experiment(port: int, *, by: str, tmp_path: Path) -> dict:
    """The file of a run whose store is the server at `port`; without a kind, so that its trainer ends at once."""
    url, endpoint = f"s3://{BUCKET}/by-{by}", f"http://127.0.0.1:{port}"
    tree = {"name": "r", "output": {"root": f"{tmp_path}/out"}, "store": {"url": url}}
    if by == "env":
        return {**tree, "env": {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-east-1"}}
    return {**tree, "store": {"url": url, "endpoint": endpoint, "region": "us-east-1", "addressing": "path"}}


@pytest.mark.parametrize("by", ["env", "store"])
def test_the_entrypoint_of_the_pods_finds_the_server_that_only_the_file_names(
    by: str, s3_server: int, credentials: dict[str, str], tmp_path: Path
) -> None:
    tree = experiment(s3_server, by=by, tmp_path=tmp_path)
    (tmp_path / "exp.json").write_text(json.dumps(tree))
    done = subprocess.run(
        [sys.executable, "-m", "opd.pods.start", str(tmp_path / "exp.json")],
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
        env={**os.environ, "RAY_CLUSTER_NAME": "c"},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr  # the trainer's: the file has no kind
    endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3_server}", "AWS_DEFAULT_REGION": "us-east-1"}
    store = open_store(tree["store"]["url"], environment=endpoint)
    assert store.exists("r/starts/c/0001.json")


def test_in_a_pod_the_file_is_final_and_on_a_person_s_machine_the_shell_s_endpoint_stays() -> None:
    tree = {"env": {"X": "file"}, "store": {"url": "s3://b", "endpoint": "http://file"}}
    shell = {"AWS_ENDPOINT_URL": "http://shell", "X": "shell"}
    here, pod = dict(shell), dict(shell)
    apply_experiment(tree, here, is_final=False)
    apply_experiment(tree, pod, is_final=True)
    assert (here["X"], storage_options("s3://b", here)["endpoint_url"]) == ("file", "http://shell")
    assert (pod["X"], storage_options("s3://b", pod)["endpoint_url"]) == ("file", "http://file")


def test_the_addressing_style_reaches_the_client() -> None:
    for style in ("path", "virtual"):
        options = storage_options("s3://b", under({"OPD_S3_ADDRESSING": style}, {}))
        assert options["config_kwargs"]["s3"] == {"addressing_style": style}
    assert "s3" not in storage_options("s3://b", {})["config_kwargs"]
    assert storage_options("gs://b", {"OPD_S3_ADDRESSING": "path"}) == {}
