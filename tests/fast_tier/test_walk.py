"""A newcomer's way from an empty namespace to a run of 2 x 8 GPUs that Kueue admits, by the commands of README.md alone.

Here the operators run already and nothing can be fetched or built, so the commands of `ELSEWHERE` are left out. The site file is
k3s' with what its remarks offer: pull secret, the hub's cache, Kueue's queue of manifests/cluster.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from tests.charts.helm import CHARTS, ROOT
from tests.e2e.cluster.tenancy import storage_class
from tests.fast_tier.nodes import node, volume
from tests.fast_tier.runs import admitted, is_active, nodes_by_role, pods, status
from tests.processes import ended

import gotools
from opdctl.chart.values import merge

NAMESPACE = "opd"
ELSEWHERE = ("helm repo add", "helm install kuberay", "helm install kueue", "make setup-tool", "images/build.sh")
NAME = "my-run"  # as README names it
RUN = Path(__file__).parent / "two_nodes.yaml"
BOXES = ("k3s-box-0", "k3s-box-1")


@pytest.fixture(scope="module")
def readme():
    """The commands of README.md's part on Kubernetes, without their remarks."""
    part = (ROOT / "README.md").read_text().partition("\n## On Kubernetes\n")[2].partition("\n## ")[0]
    lines = [line.strip() for line in part.splitlines() if line.startswith("    ")]
    return [re.sub(r"\s+#.*", "", line) for line in lines]


def only(commands, words):
    [command] = [command for command in commands if words in command]
    return command


@pytest.fixture(scope="module", name="tier")
def tier_with_kueue(kueue_tier):
    return kueue_tier


class Walker:
    """A person with a checkout, a shell and the tools on its PATH."""

    def __init__(self, tier, folder):
        self.tier, self.folder, self.exports = tier, folder, []
        tools = folder / "bin"
        tools.mkdir()
        for name in ("kubectl", "helm"):
            (tools / name).symlink_to(gotools.find(name))
        program = tools / "opdctl"
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}/src:{ROOT}/tools exec {os.sys.executable} -m opdctl "$@"\n')
        program.chmod(0o755)
        (folder / "charts").symlink_to(CHARTS)
        shutil.copytree(ROOT / "manifests", folder / "manifests")

    def do(self, command, *, is_admin=False):
        """The command in the checkout's folder; what it exports stays."""
        user = self.tier.admin if is_admin else self.tier.user(NAMESPACE)
        environment = {**user.environment, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "COLUMNS": "400",
                       "AWS_EC2_METADATA_DISABLED": "true"}  # fmt: skip
        script = "\n".join(["set -e", *self.exports, command])
        if command.startswith("export "):
            self.exports.append(command)
        return ended("bash", "-c", script, cwd=self.folder, env=environment, timeout=150)

    def edit(self, name, *layers):
        """Write YAML over a file's own; None takes a key away."""
        path = self.folder / name
        tree = yaml.safe_load(path.read_text()) if path.exists() else {}
        for layer in layers:
            tree = merge(tree, layer)
        path.write_text(yaml.safe_dump(without_nones(tree)))


def without_nones(tree):
    if not isinstance(tree, dict):
        return tree
    return {key: without_nones(value) for key, value in tree.items() if value is not None}


@pytest.fixture(scope="module")
def rack(tier):
    """Two boxes of eight GPUs and a server as k3s describes them, Longhorn's class, and the Service of a MinIO."""
    machines = [node("k3s-server-0"), *(node(name, gpu="NVIDIA-H100-80GB-HBM3") for name in BOXES)]
    longhorn = [storage_class("longhorn", is_default=False), volume("longhorn-0", "longhorn")]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "minio", "namespace": "minio"},
               "spec": {"ports": [{"port": 9000}], "selector": {"app": "minio"}}}  # fmt: skip
    minio = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "minio"}}
    tier.admin.create([*machines, *longhorn, *(volume(f"{NAMESPACE}-{number}") for number in range(6)), minio])
    tier.admin.create([service], namespace="minio")
    names = [machine["metadata"]["name"] for machine in machines]
    tier.admin.until("the boxes are ready", lambda: all(
        not tier.admin.get("node", name)["spec"].get("taints") for name in names))  # fmt: skip
    yield names
    tier.admin.run("delete", "node", *names)


@pytest.fixture(scope="module")
def walker(tier, rack, readme, tmp_path_factory):
    """Return a walker that has done all of README's commands before `opdctl doctor`, in their order."""
    found = Walker(tier, tmp_path_factory.mktemp("walk"))
    (found.folder / "store.env").write_text("AWS_ACCESS_KEY_ID=id\nAWS_SECRET_ACCESS_KEY=secret\n")
    (found.folder / "hugging-face.token").write_text("hf_x")
    (found.folder / "wandb.key").write_text("w")
    uncomment(found.folder / "manifests/cluster/kustomization.yaml", "components/claims", "components/kueue")
    before = readme[: readme.index(only(readme, "opdctl doctor"))]
    for command in before:
        if command.startswith(ELSEWHERE):
            continue
        done = found.do(command, is_admin="manifests/cluster" in command)
        assert done.returncode == 0, (command, done.stderr)
    tier.admin.until("the claims are bound", lambda: all(
        claim["status"].get("phase") == "Bound" for claim in tier.admin.items("pvc", namespace=NAMESPACE)))  # fmt: skip
    tier.admin.until("the queue is active", lambda: is_active(tier, NAMESPACE, "training"))
    experiment = yaml.safe_load(RUN.read_text())
    image = experiment.pop("cluster")["image"]
    # What images/build.sh prints, written into site.yaml as README says, and what the remarks of manifests/sites/k3s.yaml offer.
    queue = {"lifecycle": "suspendable", "queue": {"manager": "kueue", "name": "training"}}
    mine = {"image": {**image, "pullSecrets": ["registry"]}, "cache": {"claim": "hub-cache"}, **queue}
    found.edit("site.yaml", {"cluster": mine})
    found.edit("exp.yaml", experiment)
    return found


def uncomment(path, *words):
    """Take the `#` off the lines with these words, as the file's own remark says."""
    lines = path.read_text().splitlines()
    assert all(any(word in line for line in lines) for word in words)
    path.write_text(
        "\n".join(line.replace("# ", "", 1) if any(word in line for word in words) else line for line in lines)
    )


def test_the_commands_of_the_readme_end_in_an_admitted_run_of_two_times_eight_gpus(tier, walker, readme, rack):
    done = walker.do(only(readme, "opdctl doctor"))
    assert done.returncode == 0, done.stdout + done.stderr
    done = walker.do(only(readme, "opdctl submit"))
    assert done.returncode == 0, done.stdout + done.stderr
    sizes = tier.admin.until("Kueue has admitted the run", lambda: admitted(tier, NAMESPACE, NAME))
    assert sizes == {"head": 1, "worker": 2, "submitter": 1}
    tier.admin.until("all pods are bound", lambda: sorted(
        (role, len(names)) for role, names in nodes_by_role(tier, NAMESPACE, NAME).items() if all(names)
    ) == [("head", 1), ("submitter", 1), ("worker", 2)])  # fmt: skip
    assert set(nodes_by_role(tier, NAMESPACE, NAME)["worker"]) == set(BOXES)
    assert status(tier, NAMESPACE, NAME)["rayClusterName"]
    assert {pod["spec"]["imagePullSecrets"][0]["name"] for pod in pods(tier, NAMESPACE, NAME)} == {"registry"}

    def reserved():
        flavors = tier.admin.get("localqueue", "training", namespace=NAMESPACE)["status"]["flavorsReservation"]
        return {one["name"]: one["total"] for one in flavors[0]["resources"]}

    # Kueue sums the queue up after the admission.
    tier.admin.until("the queue counts 16 GPUs as reserved", lambda: reserved().get("nvidia.com/gpu") == "16")
    done = tier.helm(NAMESPACE, "uninstall", NAME)
    assert done.returncode == 0, done.stderr
