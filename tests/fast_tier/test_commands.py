"""Every command of opdctl once, in the order in which a new user types them: from an empty folder to a run, its report and its end.

The tool's own list of commands says what is to be walked. No pod computes anything here: what the run would have left in its store,
a real S3 server, is written by the run directory itself.
"""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from tests.fast_tier.nodes import A100, H200, L40S, STORAGE_CLASS
from tests.fast_tier.opdctl import Tool
from tests.fast_tier.runs import end, reached
from tests.opdctl.in_process import invoke
from tests.opdctl.test_store_commands import seal_checkpoint
from tests.runs.s3.server import BUCKET, environment, running_server

from opd.config import dump_spec, spec_hash
from opd.runs.run import Run
from opd.store.base import RetryPolicy
from opdctl import cli, load
from opdctl.chart.values import load_experiments
from opdctl.commands.list_runs import Format

NAMESPACE, RUN, OTHER = "first-day", "first", "second"
STORE = f"s3://{BUCKET}/{NAMESPACE}"
IMAGE = f"registry.example/opd@sha256:{'0' * 64}"
MODELS = ("--student", "toy://student", "--teacher", "toy://teacher", "--data", "a.parquet", "--val", "b.parquet")


class Walk:
    """Types commands in this process, in the current folder; `walked` are the commands that did what was expected."""

    def __init__(self, capfd):
        self.capfd, self.walked = capfd, set()

    def __call__(self, command, *words, code=0):
        self.capfd.readouterr()
        found = invoke(command, *words)
        seen = self.capfd.readouterr()
        text = seen.out + seen.err
        assert found == code, f"opdctl {command} {' '.join(map(str, words))}: {found}\n{text}"
        self.walked.add(command)
        return text


@pytest.fixture
def server(tmp_path):
    """The port of a running S3 server."""
    with running_server(tmp_path / "s3") as port:
        yield port


@pytest.fixture
def walk(tier, server, tmp_path, monkeypatch, capfd):
    tier.namespace(NAMESPACE)
    (home := tmp_path / "home").mkdir()
    monkeypatch.chdir(home)
    for name in ("OPDCTL_STORE", "OPDCTL_SITE", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    # The server's address is the site file's to say; a person's own shell holds the keys.
    own = {name: value for name, value in environment(server).items() if name != "AWS_ENDPOINT_URL"}
    for name, value in {**Tool(tier, NAMESPACE, home).environment, **own}.items():
        monkeypatch.setenv(name, value)
    return Walk(capfd)


def leave_results(folder, name, seed, tmp_path):
    """What a finished run of exp.yaml leaves in the store, as its driver writes it."""
    [found] = load_experiments("exp.yaml", site="site.yaml", env={}, sets=[f"name={name}", f"seed={seed}"])
    with Run.open(
        run_id=name, local_root=tmp_path / "local", spec=dump_spec(found.spec), spec_hash=spec_hash(found.spec),
        store_url=str(folder), tee=False, policy=RetryPolicy(max_elapsed_s=10),
    ) as run:  # fmt: skip
        for step in (1, 2):
            run.log(step, {"opd/loss": seed / step, "timing_s/step": 2.0, "val-core/math/acc/mean@1": 0.25 * step})
        (run.handle.attempt_dir / "driver.log").write_text("step 2/2\n")
        run.finish({"steps": 2})
    seal_checkpoint(folder / name, 2, {"data.pt": b"abc"})


def test_a_new_user_types_every_command_of_the_tool_once(tier, walk, server, tmp_path, monkeypatch):
    at = ("-n", NAMESPACE)
    files = ("exp.yaml", "--site", "site.yaml", "--set", f"name={RUN}")
    walk("explain", "opd.loss_type")
    text = walk("init", *at, "--image", IMAGE, "--store", STORE, "--endpoint", f"http://127.0.0.1:{server}", *MODELS)
    site = yaml.safe_load(Path("site.yaml").read_text())["cluster"]
    assert site["checkpoints"] == {"storageClass": STORAGE_CLASS}, "read from the cluster"
    assert site["gpu"]["type"] in (H200, A100, L40S)
    [secret] = [line for line in text.splitlines() if line.startswith("  kubectl create secret")]
    assert f"opdctl doctor exp.yaml --site site.yaml -n {NAMESPACE}" in text

    assert secret.strip() in walk("doctor", *files, *at, code=1)
    keys = {name: value for name, value in environment(server).items() if name != "AWS_ENDPOINT_URL"}
    Path("store.env").write_text("".join(f"{name}={value}\n" for name, value in keys.items()))
    tier.user(NAMESPACE).run(*shlex.split(secret, comments=True)[1:])
    assert "MISSING" not in walk("doctor", *files, *at)
    assert "kind: RayJob" in walk("render", *files, *at)
    assert f"opdctl status {RUN} -n {NAMESPACE}" in walk("submit", *files, *at)
    reached(tier, NAMESPACE, RUN, "Running")

    for number, name in enumerate((RUN, OTHER), start=1):
        leave_results(tmp_path / "s3" / "data" / BUCKET / NAMESPACE, name, number, tmp_path)

    for form in Format:
        assert RUN in walk("list", *at, "-o", form.value)
    assert json.loads(walk("status", RUN, *at, "-o", "json"))["run"] == RUN
    assert "step 2/2" in walk("logs", RUN, *at)
    end(tier, NAMESPACE, RUN, jobDeploymentStatus="Complete", jobStatus="SUCCEEDED")
    assert "succeeded" in walk("wait", RUN, *at, "--timeout", 60)

    walk("collect", RUN, *at, "-f", "all.csv")
    assert len(Path("all.csv").read_text().splitlines()) == 3
    walk("report", RUN, *at)
    assert RUN in Path("report.html").read_text()
    assert "verified" in walk("pull", RUN, *at)
    assert load(RUN).metrics.num_rows == 2
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server}")  # a store without a run of the namespace
    assert "2 seeds" in walk("compare", RUN, OTHER, "--store", STORE)

    walk("cancel", RUN, *at)
    assert "results deleted" in walk("delete", RUN, *at, "--claim", "--results", "--yes")
    assert walk.walked == {command.name for command in cli.app.registered_commands}
